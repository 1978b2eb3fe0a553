"""What one epoch of 2 ranks × batch 8 learns beside one of 1 × 16: `python benchmarks/weight_difference.py
[--small] [--epochs 1]`.

The same seed and images, on the digits; GroupNorm instead of BatchNorm, whose statistics would be those of a rank's own
images. In exact arithmetic the weights were equal: what differs is the order in which gradients are summed. Records the
largest difference of any weight in benchmarks/results/weight_difference.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "weight_difference.json"
NET = """
from torch import nn

def net(num_classes):
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2), nn.GroupNorm(4, outputs), nn.ReLU())

    layers = [block(3, 16), block(16, 32), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(288, num_classes)]
    return nn.Sequential(*layers)
"""


def installed_net(site: Path) -> None:
    """A package with the net, as a user's would be installed."""
    info = site / "net_without_batchnorm-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "net_without_batchnorm.py").write_text(NET)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: net-without-batchnorm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[runner.models]\ngroup_norm_net = net_without_batchnorm:net\n")


def train(place: Path, num_ranks: int, batch_size: int, *more: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Weights and metrics after the last epoch."""
    overrides = [
        "model=custom",
        "model.name=group_norm_net",
        "data=digits",
        "data.workers=0",
        *more,
    ]
    overrides += ["trainer.precision=fp32", "trainer.device=cpu", "optimizer.lr=0.05", "optimizer.lr_scaling=none"]
    overrides += [
        f"data.batch_size={batch_size}",
        f"dist.procs_per_node={num_ranks}",
        f"output_dir={place}/{num_ranks}",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{place / 'site'}"}
    command = [sys.executable, "-m", "runner", *overrides]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    (run_dir,) = (file.parent for file in (place / str(num_ranks)).glob("*/*/run.json"))
    last = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    row = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return safetensors.torch.load_file(last / "model.safetensors"), row


def main() -> None:
    """Train both and record how they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="try it out; nothing is recorded")
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    more = [f"trainer.epochs={options.epochs}", *(["trainer.max_steps=4"] if options.small else [])]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        installed_net(place / "site")
        (one, row_of_one), (two, row_of_two) = train(place, 1, 16, *more), train(place, 2, 8, *more)
    result = {
        "epochs": options.epochs,
        "steps": row_of_one["step"],
        "largest_weight_difference": max((one[key] - two[key]).abs().max().item() for key in one),
        "largest_weight": max(value.abs().max().item() for value in one.values()),
        "one_rank_of_16": {key: row_of_one[key] for key in ("train_loss", "val_loss", "val_top1")},
        "two_ranks_of_8": {key: row_of_two[key] for key in ("train_loss", "val_loss", "val_top1")},
    }
    if not options.small:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
