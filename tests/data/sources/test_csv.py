"""Lists of images: what is read out of them, and what is said of those that are wrong."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import ConfigError, InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.fingerprint import fingerprint
from runner.data.sources.csv import open_csv
from runner.data.sources.paths import resolve_paths
from runner.data.splits import inspect_data, open_splits

ROWS = [("ant/0.png", "ant"), ("bee/0.png", "bee"), ("ant/1.png", "ant"), ("bee/1.png", "bee")]


@pytest.fixture
def images(tmp_path: Path, write_images: Callable[..., Path]) -> Path:
    return write_images(tmp_path / "images", {"ant": 6, "bee": 6})


@pytest.fixture
def listed(images: Path, data_config: Callable[..., DataConfig]) -> Callable[..., DataConfig]:
    """A function (rows or text of train.csv, **values) → resolved config."""

    def make(rows: list | str | bytes, **values: object) -> DataConfig:
        file = images / "train.csv"
        if isinstance(rows, list):
            rows = "path,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
        file.write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        return resolve_paths(data_config("csv", train=file, **values))

    return make


def labelled(source) -> list[tuple[str, int]]:
    return [(Path(source.describe(image)).name, int(label)) for image, label in enumerate(source.labels)]


def mistake(data: DataConfig) -> str:
    opened, errors = open_csv(data)
    assert opened is None
    (error,) = errors
    assert isinstance(error, InvalidDatasetError)
    return str(error)


def test_images_in_the_order_of_the_list(listed, images):
    (images / "val.csv").write_text("path,label\nant/../ant/0.png,ant\nbee/2.png,bee\n")
    splits = open_splits(listed(ROWS, val=images / "val.csv"), 1)
    assert splits.classes == ("ant", "bee")
    assert labelled(splits.train) == [("0.png", 0), ("0.png", 1), ("1.png", 0), ("1.png", 1)]
    assert splits.train.open(1).pixels().shape == (20, 24, 3)
    assert splits.notes == (f"data.val: 1 of 2 images are in data.train too: {images}/ant/../ant/0.png",)


def test_lists_of_the_same_images_are_refused(listed, images):
    (images / "val.csv").write_text("path,label\nant/0.png,ant\nlink.png,bee\n")
    (images / "link.png").symlink_to("bee/0.png")
    _, errors = open_csv(listed(ROWS, val=images / "val.csv"))
    (error,) = errors
    assert isinstance(error, InvalidDatasetError)
    assert "data.val: 2 of 2 images are in data.train too" in str(error)
    assert "data.val_fraction" in str(error)


def test_the_same_list_twice_is_refused_once(listed, images):
    _, errors = open_csv(listed(ROWS, val=images / "train.csv"))
    assert [str(error).partition(",")[0] for error in errors] == [
        f"data.val = {images}/train.csv: is the same list as data.train = {images}/train.csv"
    ]


def test_a_file_that_is_no_list_is_not_quoted(listed, images, tmp_path, data_config):
    (tmp_path / "shadow").write_text("alice:x:0:secret\nme:x:1:secret\nyou:x:2:other\n")
    data = data_config("csv", train=tmp_path / "shadow", delimiter=":")
    message = mistake(resolve_paths(data))
    assert "it has 4 of other names" in message
    assert "alice" not in message
    odd = mistake(
        resolve_paths(
            data_config("csv", train=tmp_path / "shadow", delimiter=":", path_column="alice", label_column="x")
        )
    )
    assert odd.endswith("line 2, line 3")


def test_no_line_is_endless(listed, images):
    assert "line 2 has 1,048,576 characters or more" in mistake(listed(b"path,label\n" + b"x" * 2_000_000))


def test_classes_come_from_train_by_name_in_the_order_of_their_bytes(listed, images):
    rows = [("ant/0.png", "über"), ("ant/1.png", "Zoo"), ("ant/2.png", "a b"), ("bee/0.png", "10")]
    (images / "val.csv").write_text("path,label\nbee/1.png,a b\n")
    splits = open_splits(listed(rows, val=images / "val.csv"), 1)
    assert splits.classes == ("10", "Zoo", "a b", "über")
    assert splits.val.labels.tolist() == [2]
    assert "data.val: no image of 3 of 4 classes: 10, Zoo, über" in splits.notes


def test_a_class_that_only_val_has_is_refused(listed, images):
    (images / "val.csv").write_text("path,label\nbee/2.png,wasp\n")
    _, errors = open_csv(listed(ROWS, val=images / "val.csv"))
    assert len(errors) == 1
    assert f"data.val = {images}/val.csv: 1 of 1 classes are none of the training split" in str(errors[0])
    assert "wasp" in str(errors[0])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,label\r\nant/0.png,ant\r\nbee/0.png,bee\r\n",
        "path,label\nant/0.png,ant\n\n\nbee/0.png,bee",
        '"path","label"\n"ant/0.png","ant"\nbee/0.png, bee \n',
        "label,extra,path\nant,1,ant/0.png\nbee,,bee/0.png\n",
        " path , label\n./ant//0.png,ant\nbee/0.png,bee\n",
    ],
)
def test_spellings_of_the_same_list(listed, text):
    opened, errors = open_csv(listed(text))
    assert errors == []
    assert opened.notes == ()
    assert labelled(opened.train) == [("0.png", 0), ("0.png", 1)]


def test_other_columns_and_delimiter(listed):
    text = "file;class\nant/0.png;ant\nbee/0.png;bee\n"
    opened, errors = open_csv(listed(text, path_column="file", label_column="class", delimiter=";"))
    assert errors == []
    assert opened.classes == ("ant", "bee")


@pytest.mark.parametrize(
    "name", ["a,b.png", 'say "x".png', "two\nlines.png", "ü 日本.png", "x" * 251 + ".png", " .png"]
)
def test_names_of_every_kind(listed, images, name):
    shutil.copy(images / "ant/0.png", images / name)
    with (images / "train.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label"), (name, "ant"), ("bee/0.png", "bee")])
    opened, errors = open_csv(listed((images / "train.csv").read_bytes()))
    assert errors == []
    assert opened.train.index.path(0) == f"{images}/{name}"
    assert opened.train.open(0).pixels().shape == (20, 24, 3)


def test_names_that_are_no_utf8(listed, images):
    shutil.copy(images / "ant/0.png", str(images / "x").encode() + b"\xff.png")
    opened, errors = open_csv(listed(b"path,label\nx\xff.png,ant\nbee/0.png,bee\n"))
    assert errors == []
    assert opened.train.open(0).pixels().shape == (20, 24, 3)


def test_relative_paths_start_at_the_root_or_else_at_the_list(listed, images, tmp_path):
    rows = [(f"images/{path}", label) for path, label in ROWS]
    data = listed(rows, root=tmp_path)
    assert labelled(open_csv(data)[0].train) == labelled(open_csv(listed(ROWS))[0].train)
    assert "4 of 4 images are not there or no files, looked for from" in mistake(listed(rows))


def test_absolute_paths_below_the_root_are_the_same_as_relative_ones(listed, images):
    rows = [(f"{images}/{path}", label) for path, label in ROWS]
    relative, absolute = (open_splits(listed(given, val_fraction=0.5), 1) for given in (ROWS, rows))
    assert fingerprint(relative) == fingerprint(absolute)


def test_absolute_paths_elsewhere(listed, images, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    rows = [(f"{images}/{path}", label) for path, label in ROWS]
    opened, errors = open_csv(listed(rows, root=tmp_path / "elsewhere"))
    assert errors == []
    assert opened.train.describe(0) == f"{images}/ant/0.png"


def test_rows_that_say_the_same_twice_are_used_once_and_said(listed, images):
    opened, _ = open_csv(listed([*ROWS, ROWS[0], (f"{images}/bee/0.png", "bee")]))
    assert len(opened.train) == 4
    assert opened.notes == (
        f"data.train = {images}/train.csv: 2 rows repeat others, and are used once: ant/0.png, bee/0.png",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the file is empty; expected a header line"),
        ("path,label\n", "lists no image"),
        ("file,label\nx,y\n", "has no column 'path' (data.path_column); it has file, label"),
        ("a,b\nx,y\n", "no column 'path' (data.path_column) and no column 'label' (data.label_column); it has a, b"),
        ("path;label\nx;y\n", "are its columns apart by another character (data.delimiter)?"),
        ("path,path,label\nx,y,z\n", "has several columns path"),
        ("path,label\nant/0.png,ant\nbee/0.png\n", "line 3: 1 values, but the header has 2 columns"),
        ("path,label\nant/0.png,ant,3\n", "line 2: 3 values"),
        ("path,label\nant/0.png,\n", "line 2: has no value for 'label'"),
        ("path,label\n ,ant\n", "line 2: has no value for 'path'"),
        ('path,label\n"ant/0.png,ant\n', "this is no CSV"),
        (b"path,label\nant/0.png,K\xe4fer\n", r"the label K\xe4fer is no UTF-8"),
        ("path,label\nx,y\n".encode("utf-16"), "this is UTF-16; save it as UTF-8"),
        ("path,label\nant/0.png,ant\nant/0.png,bee\n", "ant/0.png (lines 2 and 3: ant, then bee)"),
        ("path,label\nant/0.png,ant\ngone.png,bee\n", "1 of 2 images are not there or no files, looked for from"),
        ("path,label\nant,ant\n", "1 of 1 images are not there or no files"),
        ("path,label\nant\\0.png,ant\n", "paths of Windows"),
        ("path,label\nant\x00.png,ant\n", "ant"),
    ],
)
def test_errors_in_a_list_are_named(listed, images, text, found):
    message = mistake(listed(text))
    assert message.startswith(f"data.train = {images}/train.csv: ")
    assert found in message


def test_many_missing_files_are_counted_with_examples(listed):
    message = mistake(listed([*ROWS, *((f"gone{number:04d}.png", "ant") for number in range(5000))]))
    assert "5000 of 5004 images are not there" in message
    assert message.endswith("gone0000.png, gone0001.png, gone0002.png, …")


def test_a_missing_list(data_config, tmp_path):
    assert "can't be read: there is no such file or folder" in mistake(
        resolve_paths(data_config("csv", train=tmp_path / "x.csv"))
    )
    assert f"data.train: {tmp_path} is a folder, no regular file" in mistake(
        resolve_paths(data_config("csv", train=tmp_path))
    )


def test_one_class_only(listed):
    opened, errors = open_csv(listed(ROWS[::2]))
    assert opened is not None
    assert "only one class, ant, but a classifier needs at least 2" in str(errors[0])


def test_the_mistakes_of_all_lists_come_together(listed, images):
    inspection = inspect_data(listed("path,label\ngone,ant\n", val=images / "none.csv"), 1)
    assert [str(error).partition(" = ")[0] for error in inspection.errors] == ["data.train", "data.val"]


def test_groups_stay_together_where_validation_is_made(listed, images):
    rows = [(f"{name}/{number}.png", name, f"patient {number // 2}") for name in ("ant", "bee") for number in range(6)]
    text = "path,label,who\n" + "".join(",".join(row) + "\n" for row in rows)
    splits = open_splits(listed(text, group_column="who", val_fraction=0.34), 1)
    groups = [
        {int(Path(source.describe(image)).stem) // 2 for image in range(len(source))}
        for source in (splits.train, splits.val)
    ]
    assert groups[0] | groups[1] == {0, 1, 2}
    assert not groups[0] & groups[1]
    assert np.bincount(splits.val.labels).tolist() == [2, 2]
    assert "as far as whole groups allow" in splits.notes[0]
    message = mistake(listed(text, group_column="whom"))
    assert "has no column 'whom' (data.group_column); it has path, label, who" in message
    contradiction = mistake(listed(text + "ant/0.png,ant,patient 9\n", group_column="who"))
    assert "in two groups" in contradiction


def test_classes_of_one_group_are_said(listed):
    text = "path,label,who\nant/0.png,ant,a\nant/1.png,ant,b\nbee/0.png,bee,c\nbee/1.png,bee,c\n"
    splits = open_splits(listed(text, group_column="who", val_fraction=0.5), 1)
    assert "validation lacks the classes of a single group: bee" in splits.notes


def test_a_list_where_a_folder_was_meant(data_config):
    with pytest.raises(ConfigError, match=r"data\.exclude.*no paths"):
        resolve_paths(data_config("synthetic", exclude="x.csv"))


def test_an_address_in_a_list_is_refused_by_its_line(listed):
    assert "line 2: the path is a remote address, but only local paths" in mistake(
        listed("path,label\ns3://b/1.jpg,a\n")
    )
