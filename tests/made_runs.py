"""Run folders made by hand, in milliseconds and without torch, as training and evaluation leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import runner
from runner.base.safe_text import csv_lines
from runner.data.fingerprint import fingerprint
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits
from tests.conftest import SMALL_NET, TINY

# A small model with BatchNorm whose training takes a second.
SMALL = (*TINY, *SMALL_NET, "trainer.epochs=1")


def record(**facts: Any) -> dict[str, Any]:
    return {
        "status": "completed",
        "attempts": 1,
        "command": "python -m runner",
        "overrides": [],
        "experiment": {"model": "resnet18", "data": "digits", "data_root": None},
        "git": {"commit": "a" * 40, "dirty": False},
        "world_size": 1,
        "versions": {"torch": "2.15.0"},
        "host": "here",
        "device": "cpu",
        "start": "2026-11-20T10:00:00+00:00",
        "end": "2026-11-20T10:02:05+00:00",
        "best": {"metric": "val_top1", "value": 0.9, "epoch": 2, "weights": "raw"},
        "error": None,
        **facts,
    }


def row(epoch: int, **values: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": 10 * epoch,
        "lr": 0.1 / epoch,
        "train_loss": 1.0 / epoch,
        "train_top1": 0.8,
        "val_loss": 1.1 / epoch,
        "val_top1": 0.45 * epoch,
        "val_top5": 1.0,
        "train_images_per_second": 100.0,
        "train_seconds": 10.0,
        "data_wait_seconds": 1.0,
        "evaluation_seconds": 2.0,
        "checkpoint_seconds": 0.5,
        "epoch_seconds": 13.5,
        **values,
    }


def make_run(
    folder: Path, overrides: tuple[str, ...] = (), rows: tuple[dict[str, Any], ...] = (), **facts: Any
) -> Path:
    """A run folder with a record, a config and rows of metrics."""
    folder.mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "rank_0.log").write_text("")
    (folder / "config.yaml").write_text(runner.load_config(list(overrides)).to_yaml())
    (folder / "run.json").write_text(json.dumps(record(**facts)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(values) + "\n" for values in rows))
    return folder


def make_run_on_photos(folder: Path, photos: Path, classes: tuple[str, ...], **facts: Any) -> Path:
    """A run on a folder of images of these classes, evaluated: of each class one image is right and one is wrong."""
    from PIL import Image

    for split in ("train", "val"):
        for number, name in enumerate(classes):
            (photos / split / name).mkdir(parents=True)
            for image in range(2):
                picture = Image.new("RGB", (100, 80), (number * 7 % 256, 40 * image, 200))
                picture.save(photos / split / name / f"{image}.png")
    overrides = ("data=folder", f"data.root={photos}", "data.batch_size=2")
    config = runner.load_config(list(overrides))
    splits = open_splits(resolve_paths(config.data), config.seed)
    data = {"fingerprint": fingerprint(splits), "num_train": len(splits.train), "num_val": len(splits.val)}
    experiment = {"model": "resnet18", "data": "folder", "data_root": str(photos)}
    run = make_run(
        folder,
        overrides,
        (row(1), row(2)),
        data={**data, "num_classes": len(classes), "num_test": 0},
        experiment=experiment,
        **facts,
    )
    _evaluate(run, splits.val, splits.classes)
    return run


def _evaluate(run: Path, source: Any, classes: tuple[str, ...]) -> None:
    (run / "evaluation").mkdir()
    num_classes, predictions = len(classes), []
    matrix = [[0] * num_classes for _ in classes]
    for image in range(len(source)):
        truth = int(source.labels[image])
        guess = truth if image % 2 == 0 else (truth + 1) % num_classes
        matrix[truth][guess] += 1
        loss = 0.1 if truth == guess else 1.0 + image / 100
        predictions.append([image, source.describe(image), classes[truth], classes[guess], 0.7, loss])
    average = {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    metrics = {
        "split": "val",
        "count": len(source),
        "correct": len(source) // 2,
        "correct_top5": len(source),
        "top1": 0.5,
        "top5": 1.0,
        "loss": 0.8,
        "expected_calibration_error": 0.2,
        "per_class": [{"class": name, **average, "support": 2} for name in classes],
        "macro_average": average,
        "weighted_average": average,
        "confusion_matrix": matrix,
        "classes": list(classes),
    }
    (run / "evaluation" / "metrics.json").write_text(json.dumps(metrics))
    header = ["image", "path", "label", "predicted", "probability", "loss"]
    (run / "evaluation" / "predictions.csv").write_text(csv_lines([header, *predictions]), encoding="utf-8")
