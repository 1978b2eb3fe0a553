"""How long a checkpoint of ResNet-50 with SGD holds training up: `python benchmarks/checkpoint_stall.py [repeats]`.

Submits checkpoints to the background writer while steps are being computed, and compares the time of `submit`, and of
the steps during the write, with steps beside which nothing is written. Records medians in
benchmarks/results/checkpoint_stall.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision

from runner.checkpoint import CheckpointStore
from runner.checkpoint_writer import CheckpointWriter
from runner.optimizer import build_optimizer, named_state
from runner.schema.optimizer import SGDConfig

RESULTS = Path(__file__).parent / "results" / "checkpoint_stall.json"
STEPS_PER_WRITE = 6


def main() -> None:
    """Measure and record."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    config = SGDConfig(name="sgd", lr=0.01, lr_scaling="none", momentum=0.9, nesterov=True, weight_decay=1e-4,
                       decay_norm_and_bias=True)  # fmt: skip
    optimizer = build_optimizer(config, model)
    images = torch.randn(4, 3, 128, 128).contiguous(memory_format=torch.channels_last)

    def step() -> float:
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(images).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    for _ in range(3):
        step()
    alone, beside, submits = [], [], []
    with tempfile.TemporaryDirectory() as folder, CheckpointWriter(CheckpointStore(Path(folder) / "c", 2)) as writer:
        for number in range(repeats + 1):
            writer.wait()
            alone_now = [step() for _ in range(STEPS_PER_WRITE)]
            tensors = {"model": dict(model.state_dict()), "optimizer": named_state(optimizer, model)}
            started = time.perf_counter()
            writer.submit(f"{number:04d}-00000000", tensors, {}, is_best=False)
            submitted = time.perf_counter() - started
            beside_now = [step() for _ in range(STEPS_PER_WRITE)]
            if number:  # the first one allocates the memory of the snapshot
                alone += alone_now
                beside += beside_now
                submits.append(submitted)
    result = {
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "median_submit_seconds": statistics.median(submits),
        "median_step_seconds_alone": statistics.median(alone),
        "median_step_seconds_beside_a_write": statistics.median(beside),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
