"""Whole trainings against those of others: `python benchmarks/trainers.py --work small|photographs [--small]`.

The same images, crop, batch size, epochs, loader processes, cores and threads (as many as cores), from the command to its
exit. Peers are brought by
whoever measures, and left out where they are not given:

    git clone https://github.com/huggingface/pytorch-image-models     --timm FOLDER
    git clone https://github.com/pytorch/vision                       --torchvision-references FOLDER/references/classification
    git clone https://github.com/ashleve/lightning-hydra-template     --lightning-template FOLDER

`--peer-python` is a Python in which they are installed, with the same torch as the runner's (by default this one).

The runner's default keeps sets as small as these once they are decoded; a second side of it decodes them in each epoch, as
it does with larger ones and as all peers do.

Goals: of small images (80 px, crops of 64), at most 0.8 times the wall time of the best peer; of photographs (500 × 375 px,
crops of 64), at least 1.5 times the images/s of the best peer.
"""  # noqa: E501 - commands to copy

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import side_by_side
import torch
from photographs import NUM_CLASSES, make_photographs
from side_by_side import BenchmarkError, Figures, Side

from runner.data.loader.workers import resolve_workers

CROP = 64
BATCH_SIZE = 32
EPOCHS = 3
NUM_TRAIN, NUM_VAL = 960, 320
WORKS = {"small": (80, 80), "photographs": (500, 375)}
LIGHTNING_BATCHES = re.compile(r"([\d.]+)it/s")
TIMM_MEAN = re.compile(r"\([\d.]+s,\s*([\d.]+)/s\)")
OURS, DECODING = "runner", "runner, decoding in each epoch"
OWN_SIDES = {OURS: (), DECODING: ("data.cache=none",)}
TORCHVISION_STEP = re.compile(r"Epoch: \[.* time: ([\d.]+)\s+data:")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What all trainers are given."""

    data: Path
    outputs: Path
    device: str
    workers: int
    epochs: int


def ours(place: Place) -> list[str]:
    return [
        sys.executable, "-m", "runner", "model=resnet18", "data=folder", f"data.root={place.data}",
        f"data.image_size={CROP}", f"data.batch_size={BATCH_SIZE}", f"data.workers={place.workers}",
        f"trainer.epochs={place.epochs}", "trainer.patience=null", f"trainer.device={place.device}",
        "optimizer.lr=0.01", f"output_dir={place.outputs}",
    ]  # fmt: skip


def timm(
    place: Place, folder: Path, python: str, *, model: str = "resnet18", crop: int = CROP, batch_size: int = BATCH_SIZE
) -> list[str]:
    # It can't load in the training process.
    return [
        python, str(folder / "train.py"), "--data-dir", str(place.data), "--train-split", "train", "--val-split", "val",
        "--model", model, "--num-classes", str(NUM_CLASSES), "--img-size", str(crop), "--crop-pct", "0.875",
        "--batch-size", str(batch_size), "--epochs", str(place.epochs), "--warmup-epochs", "0", "--opt", "sgd",
        "--lr", "0.01", "--workers", str(max(place.workers, 1)), "--device", place.device, "--amp", "--amp-dtype",
        "bfloat16", "--channels-last", "--color-jitter", "0", "--train-interpolation", "bilinear", "--log-interval",
        "5", "--output", str(place.outputs), *(["--pin-mem"] if place.device == "cuda" else []),
    ]  # fmt: skip


def torchvision_references(place: Place, folder: Path, python: str) -> list[str]:
    # Its --amp is of CUDA alone.
    return [
        python, str(folder / "train.py"), "--data-path", str(place.data), "--model", "resnet18", "--device",
        place.device, "--batch-size", str(BATCH_SIZE), "--epochs", str(place.epochs), "--workers", str(place.workers),
        "--lr", "0.01", "--train-crop-size", str(CROP), "--val-crop-size", str(CROP), "--val-resize-size",
        str(round(CROP / 0.875)), "--output-dir", str(place.outputs), *(["--amp"] if place.device == "cuda" else []),
    ]  # fmt: skip


def lightning_template(place: Place, folder: Path, python: str) -> list[str]:
    # Its only data module and network are for MNIST; peers/lightning_folder.py and torchvision stand in for them.
    dense = ("input_size", "lin1_size", "lin2_size", "lin3_size", "output_size")
    return [
        python, str(folder / "src" / "train.py"), "data._target_=lightning_folder.FolderDataModule",
        f"data.data_dir={place.data}", f"data.batch_size={BATCH_SIZE}", f"data.num_workers={place.workers}",
        "~data.train_val_test_split", f"+data.image_size={CROP}", "model.net._target_=torchvision.models.resnet18",
        *(f"~model.net.{name}" for name in dense), f"+model.net.num_classes={NUM_CLASSES}",
        f"trainer={'gpu' if place.device == 'cuda' else 'cpu'}", "+trainer.precision=bf16-mixed",
        f"trainer.max_epochs={place.epochs}", "test=False", f"hydra.run.dir={place.outputs}",
    ]  # fmt: skip


def rate_of_ours(place: Place, _: str) -> float:
    """Images/s of the last epoch's steps."""
    newest = max(place.outputs.glob("*/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    rate: float = json.loads(newest.read_text().splitlines()[-1])["train_images_per_second"]
    return rate


def rate_of_timm(_: Place, output: str) -> float:
    """Images/s of the last epoch, mean."""
    return float(TIMM_MEAN.findall(output)[-1])


def rate_of_torchvision(_: Place, output: str) -> float:
    """Images/s by the seconds per batch that it printed last, the mean of 20; its own img/s leaves out loading."""
    return BATCH_SIZE / float(TORCHVISION_STEP.findall(output)[-1])


def rate_of_lightning(_: Place, output: str) -> float:
    """Images/s by the batches/s that its bar of progress showed last."""
    return BATCH_SIZE * float(LIGHTNING_BATCHES.findall(output)[-1])


def side(
    name: str, command: Sequence[str], place: Place, rate: Callable[[Place, str], float], folder: Path | None = None
) -> Side:
    def measure() -> Figures:
        seconds, output = side_by_side.timed(command, cwd=place.data)
        try:
            return {"wall_seconds": seconds, "images_per_second": rate(place, output)}
        except IndexError as error:
            raise BenchmarkError(f"{name}: no rate in its output:\n{output[-3000:]}") from error

    shown = side_by_side.shown(command, place.data, place.outputs)
    # Of where a peer lies on this machine only the name is of interest.
    return Side(name=name, measure=measure, command=shown.replace(f"{folder.parent}/", "") if folder else shown)


def sides_of(options: argparse.Namespace, place: Place) -> tuple[list[Side], dict[str, str]]:
    """What there is to measure, and why the rest is left out."""
    peers = {
        "timm": (options.timm, timm, rate_of_timm),
        "torchvision references": (options.torchvision_references, torchvision_references, rate_of_torchvision),
        "lightning-hydra-template": (options.lightning_template, lightning_template, rate_of_lightning),
    }
    sides = [side(name, [*ours(place), *more], place, rate_of_ours) for name, more in OWN_SIDES.items()]
    missing = {}
    for name, (folder, command, rate) in peers.items():
        if folder is None:
            missing[name] = f"its folder was not given (--{name.replace(' ', '-')})"
        else:
            sides.append(side(name, command(place, folder, options.peer_python), place, rate, folder))
    return sides, missing


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--torchvision-references", type=Path)
    parser.add_argument("--lightning-hydra-template", "--lightning-template", dest="lightning_template", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    print(f"whole trainings: {options.work}", flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    num_train, num_val, epochs = (64, 32, 1) if options.small else (NUM_TRAIN, NUM_VAL, EPOCHS)
    width, height = WORKS[options.work]
    with tempfile.TemporaryDirectory() as name:
        place = Place(
            data=make_photographs(
                Path(name) / "data", num_train=num_train, num_val=num_val, width=width, height=height
            ),
            outputs=Path(name) / "outputs",
            device=device,
            workers=resolve_workers("auto", device, 1),
            epochs=epochs,
        )
        sides, missing = sides_of(options, place)
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    peers = [runs for name, runs in measured.items() if name not in OWN_SIDES]
    ratios = {}
    if peers:
        best_wall = min(peer.median("wall_seconds") for peer in peers)
        best_rate = max(peer.median("images_per_second") for peer in peers)
        for name, ending in ((OURS, "_kept"), (DECODING, "")):
            ratios[f"wall_to_best_peer{ending}"] = measured[name].median("wall_seconds") / best_wall
            ratios[f"rate_to_best_peer{ending}"] = measured[name].median("images_per_second") / best_rate
    side_by_side.record(
        f"trainers_{options.work}",
        measured,
        ratios,
        small=options.small,
        work=f"ResNet-18, JPEGs of {width}×{height} px to crops of {CROP}, batch {BATCH_SIZE}, {epochs} epochs, "
        f"{device}",
        not_measured=missing,
    )


if __name__ == "__main__":
    main()
