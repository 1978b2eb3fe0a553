"""What a checkpoint of ResNet-50 with SGD costs the training: `python benchmarks/checkpoint_stall.py [repeats]`.

Submits checkpoints to the background writer and computes steps until each is written: what they take longer than as
many steps beside which nothing is written is what the checkpoint costs. Records medians, and what it costs to wait for
it instead, in benchmarks/results/checkpoint_stall.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
import torchvision

from runner.base.process import freed_memory_kept
from runner.config.schema.optimizer import SGDConfig
from runner.optimizer import build_optimizer, named_state
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter

RESULTS = Path(__file__).parent / "results" / "checkpoint_stall.json"
STEPS_ALONE = 6


def store_in(folder: str) -> CheckpointStore:
    return CheckpointStore(Path(folder) / "checkpoints", keep=2)


def seconds_lost(step: Callable[[], float], writer: CheckpointWriter, submit: Callable[[], None]) -> dict[str, float]:
    """What one checkpoint costs: in the background, and if the training waits for it."""
    writer.wait()
    alone = statistics.median(step() for _ in range(STEPS_ALONE))
    started = time.perf_counter()
    submit()
    writer.wait()
    waited = time.perf_counter() - started
    started = time.perf_counter()
    submit()
    submitted, num_steps = time.perf_counter() - started, 0
    while any(thread.name == "checkpoint" for thread in threading.enumerate()):
        step()
        num_steps += 1
    lost = time.perf_counter() - started - num_steps * alone
    return {"step": alone, "submit": submitted, "lost": lost, "waited": waited}


def main() -> None:
    """Measure and record."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    config = SGDConfig(name="sgd", lr=0.01, lr_scaling="none", momentum=0.9, nesterov=True, weight_decay=1e-4,
                       decay_norm_and_bias=True, groups=(), layer_decay=None)  # fmt: skip
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
    numbers = count()

    def submit() -> None:
        tensors = {"model": dict(model.state_dict()), "optimizer": named_state(optimizer, model)}
        writer.submit(f"{next(numbers):04d}-00000000", tensors, {}, is_best=False)

    with freed_memory_kept(), tempfile.TemporaryDirectory() as folder, CheckpointWriter(store_in(folder)) as writer:
        # The first one allocates the memory of the snapshot.
        rows = [seconds_lost(step, writer, submit) for _ in range(repeats + 1)][1:]
    result = {
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        **{f"median_{key}_seconds": statistics.median(row[key] for row in rows) for key in rows[0]},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
