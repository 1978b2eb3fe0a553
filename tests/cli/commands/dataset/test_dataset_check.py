"""`dataset check`: each damage that is put into a data set is found, named and quarantined."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import ConfigError, InvalidDatasetError, OutputError, StoppedOnRequest, UsageError
from runner.cli.commands.dataset import check as dataset_check
from runner.data.source import FolderSource


@pytest.fixture
def photos(tmp_path, write_image) -> Path:
    """Two classes in two splits, all well."""
    root = tmp_path / "photos"
    for number, (split, label) in enumerate([(s, c) for s in ("train", "val") for c in ("ants", "bees")]):
        for image in range(6):
            write_image(root / split / label / f"{image}.jpg", seed=100 * number + image)
    return root


def check(root: Path, *argv: str, output: str = "out") -> dict:
    words = ["data=folder", f"data.root={root}", f"output={root.parent / output}", "data.workers=0", *argv]
    assert dataset_check.run(words) == 0
    return json.loads((root.parent / output / "check.json").read_text())


def quarantine(root: Path) -> dict[str, str]:
    with (root.parent / "out/quarantine.csv").open(newline="", encoding="utf-8") as text:
        return {row["path"]: row["reason"] for row in csv.DictReader(text)}


def damage(root: Path) -> None:
    train, val = root / "train", root / "val"
    data = (train / "ants/0.jpg").read_bytes()
    (train / "ants/0.jpg").write_bytes(data[: len(data) // 2])
    (train / "ants/1.jpg").write_bytes(b"")
    (train / "ants/2.jpg").write_text("<html>")
    shutil.copy(val / "bees/0.jpg", train / "bees/leak ü.jpg")
    shutil.copy(train / "ants/3.jpg", train / "bees/contradiction.jpg")
    shutil.copy(train / "ants/4.jpg", train / "ants/repeat.jpg")


def test_a_data_set_that_is_well(photos, capsys):
    report = check(photos, "strict=true")
    assert set(report["num_findings"].values()) == {0}
    assert report["num_images"] == {"train": 12, "val": 12}
    assert report["num_per_class"]["ants"] == {"train": 6, "val": 6}
    assert report["size"]["width"] == {"min": 24, "median": 24.0, "max": 24}
    assert report["modes"] == {"RGB": 24}
    assert quarantine(photos) == {}
    assert "2 classes; the largest has 1 times as many" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [0, 2])
def test_each_damage_is_found(photos, workers, capsys):
    damage(photos)
    report = check(photos, f"data.workers={workers}")
    assert report["num_findings"] == {
        "unreadable": 3,
        "same_content_in_several_splits": 1,
        "same_content_with_several_labels": 1,
        "same_content_within_a_split": 1,
        "suspicious_size": 0,
        "odd_class_names": 0,
    }
    assert {Path(item["path"]).name: item["reason"] for item in report["unreadable"]}["1.jpg"].startswith(
        "the file is empty"
    )
    (leak,) = report["same_content_in_several_splits"]
    assert [(item["split"], Path(item["path"]).name) for item in leak] == [("train", "leak ü.jpg"), ("val", "0.jpg")]
    reasons = quarantine(photos)
    assert sorted(reasons) == [
        "train/ants/0.jpg",
        "train/ants/1.jpg",
        "train/ants/2.jpg",
        "train/ants/3.jpg",
        "train/bees/contradiction.jpg",
        "train/bees/leak ü.jpg",
    ]
    assert reasons["train/bees/leak ü.jpg"] == "the same content is in val"
    text = capsys.readouterr().out
    for part in ("unreadable or truncated", "leakage", "repeat.jpg (ants)", "data.exclude="):
        assert part in text


def test_strict_ends_with_an_error_after_the_report_is_written(photos):
    damage(photos)
    with pytest.raises(InvalidDatasetError, match=r"strict: 6 findings, 3 × unreadable or truncated, 1 × same"):
        check(photos, "strict=true")
    assert len(quarantine(photos)) == 6


def test_findings_are_reported(photos, write_image):
    turned = Image.open(photos / "train/ants/0.jpg")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(photos / "train/ants/0.jpg", exif=exif)
    Image.fromarray(np.zeros((20, 24), np.uint8)).save(photos / "train/ants/1.png")
    write_image(photos / "train/bees/strip.png", 7, size=(200, 20))
    report = check(photos)
    assert report["num_rotated_by_exif"] == 1
    assert report["modes"] == {"RGB": 25, "L": 1}
    assert report["train_imbalance"] == 1.0
    (odd,) = report["suspicious_size"]
    assert (odd["width"], odd["height"], odd["reason"]) == (200, 20, "aspect ratio above 5")


def test_any_source_can_be_checked(tmp_path):
    argv = ["data=synthetic", "data.num_train=70", "data.num_val=64", "data.image_size=16", "data.workers=0"]
    assert dataset_check.run([*argv, f"output={tmp_path}/out"]) == 0
    report = json.loads((tmp_path / "out/check.json").read_text())
    # The same 64 pictures over and over, known by their pixels.
    assert report["num_findings"]["same_content_in_several_splits"] == 64


def test_a_validation_split_on_the_fly_is_checked_as_training_gets_it(photos):
    shutil.rmtree(photos / "val")
    assert check(photos, "data.val_fraction=0.5")["num_images"] == {"train": 6, "val": 6}


def test_without_output_the_report_goes_under_output_dir(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dataset_check.run(["data=folder", f"data.root={photos}", "data.workers=0"]) == 0
    (report,) = tmp_path.glob("outputs/checks/*/*/check.json")
    assert str(report) in capsys.readouterr().out


def test_a_report_is_never_overwritten(photos):
    check(photos)
    with pytest.raises(OutputError, match="never overwritten"):
        check(photos)


def test_what_is_refused(photos, tmp_path):
    with pytest.raises(InvalidDatasetError, match="there is no such folder"):
        dataset_check.run(["data=folder", f"data.root={tmp_path}/none", f"output={tmp_path}/out"])
    with pytest.raises(ConfigError, match=r"did you mean data.root\?"):
        dataset_check.run(["data=folder", f"data.rot={photos}"])
    with pytest.raises(UsageError, match="takes one experiment"):
        dataset_check.run(["-m", "data=folder,digits"])
    assert not (tmp_path / "out").exists()


def test_a_signal_ends_it_with_nothing_written(photos, tmp_path, monkeypatch):
    opened = FolderSource.open
    seen = []

    def open_and_be_stopped(source, image):
        seen.append(image)
        if len(seen) == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return opened(source, image)

    monkeypatch.setattr(FolderSource, "open", open_and_be_stopped)
    with pytest.raises(StoppedOnRequest, match="stopped on SIGINT; nothing was written"):
        check(photos)
    assert not (tmp_path / "out").exists()


def test_the_command_line_imports_no_torch_and_ends_with_2(photos, run_cli):
    damage(photos)
    argv = ["dataset", "check", "data=folder", f"data.root={photos}", f"output={photos.parent}/out", "strict=true"]
    done = run_cli(*argv, "data.workers=2", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("runner: InvalidDatasetError: strict: 6 findings")
    assert " runner.data.images.decode" in done.stderr
    assert " torch\n" not in done.stderr
