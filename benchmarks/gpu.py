"""What needs a GPU: `python benchmarks/gpu.py [--timm FOLDER] [--small] [--repeats 3]`.

ResNet-50, 224 px, bf16, synthetic images: the runner against the shortest loop over the same parts and against the
benchmark.py of timm (a clone of github.com/huggingface/pytorch-image-models, with timm installed in `--peer-python`),
in its plain and its compiled mode; the same training on JPEG photographs of 500 × 375 px, against timm's train.py; and
how often the host waits for the device between two reports, by torch.cuda.set_sync_debug_mode. Goals: 6,000 images/s,
1.2 times timm's best mode, 99% of the bare loop, no wait, and on photographs 90% of the synthetic rate, or what the
cores can decode, and 1.4 times timm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import side_by_side
import torch
import trainers
from photographs import make_photographs
from side_by_side import Figures, Side

import runner
from runner.data.loader.workers import resolve_workers
from runner.launch.preflight import preflight
from runner.run.run_folder import RunFolder

BATCH_SIZE, IMAGE_SIZE, EPOCHS = 256, 224, 3
TIMM_PHOTOGRAPHS = "timm, photographs"
OVERRIDES = [
    "model=resnet50", f"data.image_size={IMAGE_SIZE}", f"trainer.epochs={EPOCHS}", "trainer.patience=null",
    "trainer.device=cuda", "optimizer.lr=0.001",
]  # fmt: skip


def synthetic(batch_size: int, num_steps: int) -> list[str]:
    num_train = batch_size * num_steps
    sizes = [f"data.batch_size={batch_size}", f"data.num_train={num_train}", f"data.num_val={batch_size}"]
    return [*OVERRIDES, "data=synthetic", *sizes]


def photographs(folder: Path, batch_size: int) -> list[str]:
    return [*OVERRIDES, "data=folder", f"data.root={folder}", f"data.batch_size={batch_size}"]


def count_waits(typed: list[str]) -> int:
    """How often the host waits for the device within the steps of one epoch between two reports."""
    from loop import build  # noqa: PLC0415 - also run as a script of its own

    ready = preflight(runner.load_config([*typed, "trainer.print_every=1000000"]))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        trainer = build(ready, RunFolder(Path(name)), stack)
        steps = trainer.steps_per_epoch
        stream = stack.enter_context(closing(trainer.images.train_batches.stream(0, 0, 2)))
        trainer.stepper.begin_epoch()
        for _ in range(steps // 2):  # kernels are chosen, memory is allocated
            trainer.stepper.take(stream)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for _ in range(steps - steps // 2):
                trainer.stepper.take(stream)
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def timm_figures(command: list[str]) -> Figures:
    _, output = side_by_side.timed(command)
    results = json.loads(output[output.index("--result") + len("--result") :])
    first = results[0] if isinstance(results, list) else results
    return {"images_per_second": float(first["train_samples_per_sec"])}


def timm_sides(options: argparse.Namespace, batch_size: int, data: Path, outputs: Path) -> list[Side]:
    plain = [
        options.peer_python, str(options.timm / "benchmark.py"), "--model", "resnet50", "--bench", "train",
        "--img-size", str(IMAGE_SIZE), "--batch-size", str(batch_size), "--amp", "--amp-dtype", "bfloat16",
        "--channels-last", "--opt", "sgd",
    ]  # fmt: skip
    modes = {"timm": plain, "timm compiled": [*plain, "--torchcompile"]}
    sides = [
        Side(name=name, measure=partial(timm_figures, command), command=side_by_side.shown(command))
        for name, command in modes.items()
    ]
    place = trainers.Place(
        data=data, outputs=outputs, device="cuda", workers=resolve_workers("auto", "cuda", 1), epochs=EPOCHS
    )
    command = trainers.timm(
        place, options.timm, options.peer_python, model="resnet50", crop=IMAGE_SIZE, batch_size=batch_size
    )
    return [*sides, trainers.side(TIMM_PHOTOGRAPHS, command, place, trainers.rate_of_timm, options.timm)]


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: not measured: this machine has no CUDA device")
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder) / "data", Path(folder) / "outputs")


def measure(options: argparse.Namespace, folder: Path, outputs: Path) -> None:
    batch_size, num_steps = (32, 4) if options.small else (BATCH_SIZE, 100)
    typed = synthetic(batch_size, num_steps)
    make_photographs(folder, num_train=batch_size * num_steps, num_val=batch_size, width=500, height=375)
    pictures = photographs(folder, batch_size)
    commands = {"runner": ["loop.py", "runner", *typed], "bare": ["loop.py", "bare", *typed]}
    sides = side_by_side.scripts({**commands, "runner, photographs": ["loop.py", "runner", *pictures]}, folder)
    missing = {}
    if options.timm is None:
        missing["timm"] = "its folder was not given (--timm)"
    else:
        sides += timm_sides(options, batch_size, folder, outputs)
    measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    rates = {name: runs.median("images_per_second") for name, runs in measured.items()}
    # Over whole epochs: while nobody trains, loader processes work ahead by two batches each.
    on_photographs = measured["runner, photographs"].median("epoch_images_per_second")
    ratios = {
        "images_per_second": rates["runner"],
        "of_bare_loop": rates["runner"] / rates["bare"],
        "waits_for_the_device": float(count_waits(typed)),
        "photographs_to_synthetic": on_photographs / rates["runner"],
    }
    if options.timm is not None:
        ratios["to_best_peer"] = rates["runner"] / max(rates["timm"], rates["timm compiled"])
        ratios["photographs_to_timm"] = on_photographs / rates[TIMM_PHOTOGRAPHS]
    side_by_side.record(
        "gpu",
        measured,
        ratios,
        small=options.small,
        work=f"ResNet-50, 224 px, bf16, synthetic images, batch {BATCH_SIZE}, {torch.cuda.get_device_name()}",
        not_measured=missing,
    )


if __name__ == "__main__":
    main()
