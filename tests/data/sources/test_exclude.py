"""What data.exclude names is left out of every split, and said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.fingerprint import fingerprint
from runner.data.sources.exclude import read_exclude
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits


@pytest.fixture
def opened(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig]
) -> Callable[..., Splits]:
    """A function (text of the list, **values) → splits."""
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    write_images(tmp_path / "val", {"ant": 2, "bee": 2})

    def make(text: str | bytes, **values: object) -> Splits:
        file = tmp_path / "quarantine.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_splits(resolve_paths(data_config("folder", root=tmp_path, exclude=file, **values)), 1)

    return make


def names(source) -> list[str]:
    return ["/".join(Path(source.describe(image)).parts[-2:]) for image in range(len(source))]


def test_a_list_as_dataset_check_writes_it(opened, tmp_path):
    text = f'path,reason\ntrain/ant/1.png,"empty, 0 bytes"\nval/bee/0.png,x\n{tmp_path}/train/bee/3.png,y\n'
    splits = opened(text)
    assert names(splits.train) == ["ant/0.png", "ant/2.png", "ant/3.png", "bee/0.png", "bee/1.png", "bee/2.png"]
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert names(splits.val) == ["ant/0.png", "ant/1.png", "bee/1.png"]
    assert splits.train.open(1).pixels().shape == (20, 24, 3)
    assert splits.notes == (f"data.exclude = {tmp_path}/quarantine.csv: 3 images are left out",)


@pytest.mark.parametrize(
    "text",
    [
        "train/ant/1.png\nval/bee/0.png",
        "train/ant/1.png\r\n\r\nval/bee/0.png\r\n",
        "\ufeffpath\r\n./train//ant/1.png\r\ntrain/../val/bee/0.png\r\n",
        "reason,path\nx,train/ant/1.png\ny,val/bee/0.png\n",
    ],
)
def test_spellings(opened, text):
    splits = opened(text)
    assert "ant/1.png" not in names(splits.train)
    assert "bee/0.png" not in names(splits.val)
    assert (len(splits.train), len(splits.val)) == (7, 3)


def test_entries_that_name_nothing_are_said(opened, tmp_path):
    splits = opened("train/ant/1.png\ntrain/gone.png\nant/2.png\n")
    assert len(splits.train) == 7
    assert splits.notes[1] == (
        f"data.exclude = {tmp_path}/quarantine.csv: 2 entries name no image of this data set: ant/2.png, train/gone.png"
    )


def test_names_of_every_kind(tmp_path):
    (tmp_path / "list").write_bytes(b"path,reason\r\n" + b'"two\nlines.png",x\r\n"a,b.png",y\r\n' + b"\xff.png,z")
    assert read_exclude(str(tmp_path / "list")) == {"two\nlines.png": 3, "a,b.png": 4, "\udcff.png": 5}


def test_excluded_images_change_the_fingerprint(opened):
    one, same, other = (
        fingerprint(opened(text)) for text in ("train/ant/1.png", "train/ant/1.png\n", "train/ant/2.png")
    )
    assert one == same != other


def test_a_made_validation_split_is_made_of_what_stays(opened, tmp_path, data_config):
    file = tmp_path / "quarantine.csv"
    file.write_text("train/ant/0.png\n")
    data = data_config("folder", train=tmp_path / "train", exclude=file, val_fraction=0.5)
    # Without data.root, paths start where the list is.
    splits = open_splits(resolve_paths(data), 1)
    assert len(splits.train) + len(splits.val) == 7
    assert "ant/0.png" not in names(splits.train) + names(splits.val)


def test_lists_of_images_too(tmp_path, opened, data_config):
    (tmp_path / "train.csv").write_text(
        "path,label\ntrain/ant/0.png,a\ntrain/../train/bee/0.png,b\ntrain/bee/1.png,b\n"
    )
    (tmp_path / "val.csv").write_text("path,label\nval/ant/0.png,a\nval/bee/../bee/0.png,b\nval/bee/1.png,b\n")
    (tmp_path / "out.txt").write_text("train/bee/0.png\nval/bee/0.png")
    data = data_config("csv", train=tmp_path / "train.csv", val=tmp_path / "val.csv", exclude=tmp_path / "out.txt")
    splits = open_splits(resolve_paths(data), 1)
    assert splits.train.labels.tolist() == splits.val.labels.tolist() == [0, 1]


def test_what_is_no_list_of_images_is_not_quoted(opened):
    secret = "root:$y$j9T$abc:19000:0:99999:7:::\ntrain/gone.png\nhunter2\n"
    note = opened(secret).notes[1]
    assert note.endswith("3 entries name no image of this data set: line 1, line 3, train/gone.png")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a,path,b"\n1\n', "the quotes in its first line make one column of several"),
        ('path,x\n"' + "a" * 200_000 + '",1\n', "a value has more than"),
    ],
)
def test_a_list_that_is_no_csv_after_all(opened, text, message):
    with pytest.raises(InvalidDatasetError, match=message):
        opened(text)


def test_a_list_that_is_not_a_file_is_refused(opened, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room
    for place in ("/dev/zero", tmp_path / "fifo", tmp_path):
        with pytest.raises(InvalidDatasetError, match="no regular file"):
            read_exclude(str(place))
    with pytest.raises(InvalidDatasetError, match="larger than"):
        read_exclude(str(tmp_path / "large"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "".join(f"train/bee/{number}.png\n" for number in range(4)),
            "leaves no image of 1 of 2 classes of data.train: bee",
        ),
        (
            "".join(f"val/{name}/{number}.png\n" for name in ("ant", "bee") for number in (0, 1)),
            "leaves no image of data.val",
        ),
        ('path,reason\n"train/ant/0.png,x\n', "this is no CSV"),
    ],
)
def test_errors_in_the_list_are_named(opened, tmp_path, text, found):
    with pytest.raises(InvalidDatasetError) as caught:
        opened(text)
    assert str(caught.value).startswith(f"data.exclude = {tmp_path}/quarantine.csv: ")
    assert found in str(caught.value)


def test_a_missing_list(tmp_path, opened, data_config):
    with pytest.raises(InvalidDatasetError, match=r"data\.exclude = .*/none: can't be read: there is no such file"):
        open_splits(resolve_paths(data_config("folder", root=tmp_path, exclude=tmp_path / "none")), 1)


def test_images_without_paths(data_config):
    with pytest.raises(ConfigError, match=r"data\.exclude = 'x': images of data=synthetic have no paths"):
        resolve_paths(data_config("synthetic", exclude="x"))


@pytest.mark.parametrize("head", ["", "path\n"])
def test_an_address_is_refused_by_its_line(opened, head):
    line = head.count("\n") + 2
    with pytest.raises(InvalidDatasetError, match=f"quarantine.csv: line {line}: the path is a remote address"):
        opened(f"{head}train/ant/1.png\ns3://bucket/2.png\n")
