"""`dataset split`: the same rule as data.val_fraction, written down."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError, OutputError
from runner.base.files import sha256_of
from runner.cli.commands.dataset import split as dataset_split
from runner.data.held_out import stratified_split
from runner.data.sources.index import scan_class_folders


@pytest.fixture
def photos(tmp_path) -> Path:
    """30 ants, 12 bees, one wasp; nothing opens these files."""
    for label, count in (("ants", 30), ("bees", 12), ("wasp", 1)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "photos" / label / f"{number}.jpg").write_bytes(f"{label} {number}".encode())
    return tmp_path / "photos"


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def paths_of(file: Path) -> list[str]:
    return [row["path"] for row in rows_of(file)]


def test_it_is_the_rule_of_val_fraction(tmp_path, photos, capsys):
    assert dataset_split.run([f"input={photos}", f"output={tmp_path}/out", "fraction=0.8", "seed=7"]) == 0
    index = scan_class_folders(str(photos), key="x")
    _, val = stratified_split(index.labels, 0.2, 7, index.classes)
    assert paths_of(tmp_path / "out/val.csv") == [index.path(image)[len(str(photos)) + 1 :] for image in val.tolist()]
    everything = paths_of(tmp_path / "out/train.csv") + paths_of(tmp_path / "out/val.csv")
    assert sorted(everything) == sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg"))
    assert rows_of(tmp_path / "out/train.csv")[0] == {"path": "ants/0.jpg", "label": "ants"}
    record = json.loads((tmp_path / "out/split.json").read_text())
    assert record["num_per_class"]["ants"] == {"train": 24, "val": 6}
    assert record["classes_of_one_image"] == ["wasp"]
    assert record["sha256"]["val.csv"] == sha256_of(tmp_path / "out/val.csv")
    text = capsys.readouterr().out
    assert "classes with a single image, which is in train: wasp" in text
    assert f"data=csv data.root={photos} data.train={tmp_path}/out/train.csv data.val={tmp_path}/out/val.csv" in text
    # Nothing but lists is written.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["split.json", "train.csv", "val.csv"]


def test_three_splits_and_the_seed(tmp_path, photos):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        argv = [f"input={photos}", f"output={tmp_path}/{name}", "fraction=0.7", "test_fraction=0.1", f"seed={seed}"]
        dataset_split.run(argv)
    record = json.loads((tmp_path / "a/split.json").read_text())
    assert record["num_per_class"]["ants"] == {"train": 21, "val": 6, "test": 3}
    for name in ("train", "val", "test"):
        assert paths_of(tmp_path / f"a/{name}.csv") == paths_of(tmp_path / f"b/{name}.csv")
        if name != "train":
            assert paths_of(tmp_path / f"a/{name}.csv") != paths_of(tmp_path / f"c/{name}.csv")


@pytest.mark.parametrize("mode", ["copy", "hardlink", "symlink"])
def test_folders_on_request(tmp_path, photos, mode, capsys):
    dataset_split.run([f"input={photos}", f"output={tmp_path}/out", f"mode={mode}"])
    for name in ("train", "val"):
        expected = {path: (photos / path).read_bytes() for path in paths_of(tmp_path / f"out/{name}.csv")}
        folder = tmp_path / "out" / name
        assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.jpg")} == expected
    placed = tmp_path / "out/train/wasp/0.jpg"
    assert placed.is_symlink() == (mode == "symlink")
    assert os.path.samefile(placed, photos / "wasp/0.jpg") == (mode != "copy")  # noqa: PTH121
    assert f"data=folder data.root={tmp_path}/out" in capsys.readouterr().out


@pytest.fixture
def patients(tmp_path) -> Path:
    """A list of 60 patients with 3 images each, and a word nobody asks for."""
    lines = ["file;diagnosis;patient;age"]
    for patient in range(60):
        for number in range(3):
            path = tmp_path / "scans" / f"{patient} ü" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
            lines.append(f"{patient} ü/{number}.png;{'ill' if patient % 3 else 'well'};P{patient};40")
    (tmp_path / "scans/list.csv").write_text("\n".join([*lines, lines[-1]]), encoding="utf-8")
    return tmp_path / "scans/list.csv"


LIST = ("path_column=file", "label_column=diagnosis", "delimiter=;")


def test_groups_of_a_list_stay_together(tmp_path, patients, capsys):
    dataset_split.run([f"input={patients}", f"output={tmp_path}/out", *LIST, "group_column=patient", "fraction=0.8"])
    groups = {name: {row["group"] for row in rows_of(tmp_path / f"out/{name}.csv")} for name in ("train", "val")}
    assert not groups["train"] & groups["val"]
    assert len(groups["train"] | groups["val"]) == 60
    shares = json.loads((tmp_path / "out/split.json").read_text())["num_per_class"]
    assert shares["ill"]["val"] == pytest.approx(0.2 * 120, abs=3)
    assert shares["well"]["val"] == pytest.approx(0.2 * 60, abs=3)
    text = capsys.readouterr().out
    assert "1 rows repeat earlier ones" in text
    assert "groups together" in text
    assert f"data.root={patients.parent}" in text


@pytest.mark.parametrize(("typed", "delimiter"), [(",", ","), (r"\t", "\t"), ("\t", "\t"), ("|", "|")])
def test_delimiters_are_taken_as_they_are_typed(tmp_path, patients, typed, delimiter):
    patients.write_text(patients.read_text(encoding="utf-8").replace(";", delimiter), encoding="utf-8")
    argv = [f"input={patients}", f"output={tmp_path}/out", *LIST[:2], f"delimiter={typed}"]
    assert dataset_split.run(argv) == 0


def test_images_of_the_same_name_stay_apart_in_folders(tmp_path, patients):
    dataset_split.run([f"input={patients}", f"output={tmp_path}/out", *LIST, "mode=hardlink"])
    assert len(list((tmp_path / "out").rglob("*.png"))) == 180


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["group_column=patient"], ConfigError, "only a CSV list has columns"),
        (["fraction=1"], ConfigError, "fraction = 1"),
        (["fraction=0.9", "test_fraction=0.1"], ConfigError, "must be below 1"),
        (["mode=move"], ConfigError, "mode = 'move'"),
        (["delimiter=;;"], ConfigError, "must be one character"),
        (["seeds=3"], ConfigError, "did you mean seed?"),
    ],
)
def test_calls_that_are_refused(tmp_path, photos, argv, error, message):
    with pytest.raises(error) as caught:
        dataset_split.run([f"input={photos}", f"output={tmp_path}/out", *argv])
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_inputs_that_can_not_be_split(tmp_path, photos, patients):
    with pytest.raises(InvalidDatasetError, match="no such file or folder"):
        dataset_split.run([f"input={tmp_path}/none", f"output={tmp_path}/out"])
    (tmp_path / "one/train").mkdir(parents=True)
    photos.rename(tmp_path / "one/train/photos")
    (tmp_path / "one/val/ants").mkdir(parents=True)
    with pytest.raises(InvalidDatasetError, match=r"is split already, into train, val.*input=.*one/train"):
        dataset_split.run([f"input={tmp_path}/one", f"output={tmp_path}/out"])
    single = tmp_path / "single"
    for label in ("a", "b"):
        (single / label).mkdir(parents=True)
        (single / label / "1.jpg").write_bytes(b"x")
    with pytest.raises(InvalidDatasetError, match="too few images to split: nothing is left for val"):
        dataset_split.run([f"input={single}", f"output={tmp_path}/out"])
    with pytest.raises(OutputError, match="never overwritten"):
        dataset_split.run([f"input={patients}", f"output={single}", *LIST])
    with pytest.raises(OutputError, match="within the input"):
        dataset_split.run([f"input={single}", f"output={single}/new", "mode=copy"])
    (patients.parent / "3 ü/1.png").unlink()
    with pytest.raises(InvalidDatasetError, match=r"1 of 180 files do not exist or are no regular files: 3 ü/1\.png"):
        dataset_split.run([f"input={patients}", f"output={tmp_path}/out", *LIST])
    assert not (tmp_path / "out").exists()
