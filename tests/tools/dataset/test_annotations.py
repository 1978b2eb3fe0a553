from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError, NotLabeledDatasetError
from runner.data.sources.rows import Columns
from runner.tools.dataset.annotations import (
    NO_ANNOTATION,
    SEVERAL_LABELS,
    read_coco,
    read_image_list,
    refuse_special,
    sizes_of,
)

TREE = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "d/2.jpg"}, {"id": 3, "file_name": "3.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 2]},
        {"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 9, 9]},
        {"id": 3, "image_id": 2, "category_id": 7, "bbox": [0, 0, 5, 1]},
        {"id": 4, "image_id": 2, "category_id": 8, "bbox": [0, 0, 1, 1], "area": 6.5},
    ],
    "categories": [{"id": 7, "name": "ant"}, {"id": 8, "name": "bee"}],
}


def write(tmp_path: Path, tree: object) -> Path:
    file = tmp_path / "instances.json"
    file.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return file


@pytest.mark.parametrize(("rule", "label"), [("largest", "bee"), ("first", "ant"), ("skip", None)])
def test_the_rule_for_several_labels(tmp_path, rule, label):
    found = read_coco(write(tmp_path, TREE), rule)
    assert found.labels == {"1.jpg": "ant"} | ({"d/2.jpg": label} if label else {})
    assert found.left_out[NO_ANNOTATION] == ["3.jpg"]
    assert found.left_out.get(SEVERAL_LABELS, []) == ([] if label else ["d/2.jpg"])


def test_several_labels_are_an_error_unless_a_rule_is_chosen(tmp_path):
    with pytest.raises(InvalidDatasetError, match=r"d/2.jpg has several labels: ant, bee; choose a rule"):
        read_coco(write(tmp_path, TREE), "error")


@pytest.mark.parametrize("annotations", [[], None])
def test_without_annotations_there_is_no_label(tmp_path, annotations):
    with pytest.raises(NotLabeledDatasetError, match="no annotations"):
        read_coco(write(tmp_path, TREE | {"annotations": annotations}), "error")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("{", "this is no JSON"),
        ("[" * 100_000, "this is no JSON"),
        ([], "not in COCO's format"),
        ({"annotations": [1]}, "not in COCO's format"),
        (TREE | {"categories": []}, "7 is missing"),
        (TREE | {"images": [{"id": 1}]}, "'file_name' is missing"),
        (TREE | {"annotations": [3]}, "not in COCO's format"),
        (TREE | {"images": [{"id": 9, "file_name": "9.jpg"}]}, "annotations of images that are not listed"),
    ],
)
def test_files_that_are_refused(tmp_path, tree, message):
    with pytest.raises(InvalidDatasetError, match=message):
        read_coco(write(tmp_path, tree), "first")


def test_half_a_character_is_reported_and_a_device_is_not_read(tmp_path):
    tree = json.loads(write(tmp_path, TREE).read_text())
    tree["images"][1]["file_name"] = "\ud800.jpg"
    with pytest.raises(InvalidDatasetError, match=r"\\ud800.jpg has several labels: ant, bee"):
        read_coco(write(tmp_path, tree), "error")
    with pytest.raises(InvalidDatasetError, match="no regular file"):
        read_coco(Path("/dev/zero"), "error")


PATH_AND_LABEL = Columns(path="path", label="label")


def read(tmp_path: Path, content: bytes, columns: Columns = PATH_AND_LABEL, delimiter=",", encoding="utf-8"):
    file = tmp_path / "list.csv"
    file.write_bytes(content)
    return read_image_list(file, columns, delimiter=delimiter, encoding=encoding)


@pytest.mark.parametrize(
    "content",
    [
        b"path,label\na/1.jpg,ant\nb 2.jpg,bee\n",
        b"\xef\xbb\xbfpath,label\r\na/1.jpg,ant\r\nb 2.jpg,bee",
        b'label,other,"path"\nant,x,"a/1.jpg"\nbee,y,b 2.jpg\n\n',
        b"path,label,other\na/1.jpg, ant ,\nb 2.jpg,bee,\n",
    ],
)
def test_dialects(tmp_path, content):
    rows = read(tmp_path, content).rows
    assert [(row.path, row.label) for row in rows] == [("a/1.jpg", "ant"), ("b 2.jpg", "bee")]


def test_names_with_commas_line_breaks_and_odd_bytes(tmp_path):
    rows = read(tmp_path, b'path,label\n"a,1\n.jpg",ant\n\xff.jpg,bee\n').rows
    assert [row.path for row in rows] == ["a,1\n.jpg", "\udcff.jpg"]


def test_other_columns_delimiter_and_encoding(tmp_path):
    columns = Columns(path="file", label="klass", group="who", split="part")
    content = "file;klass;who;part\n1.jpg;Käfer;7;train\n".encode("cp1252")
    (row,) = read(tmp_path, content, columns, ";", "cp1252").rows
    assert (row.path, row.label, row.group, row.split) == ("1.jpg", "Käfer", "7", "train")


def test_a_row_that_repeats_is_used_once_and_counted(tmp_path):
    listed = read(tmp_path, b"path,label\n1.jpg,ant\n1.jpg,ant\n2.jpg,ant\n")
    assert ([row.path for row in listed.rows], listed.num_repeated) == (["1.jpg", "2.jpg"], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"path,label\n", "names no image"),
        (
            b"path,label\n1.jpg,ant\n1.jpg,bee\n",
            "1.jpg is listed twice, with different values \\(lines 2 and 3: ant, then bee",
        ),
        (b"path,label\n1.jpg,\n", "line 2: has no value for 'label'"),
        (b"path,label\n1.jpg\n", "line 2: 1 values, but the header has 2 columns"),
        (b"path,label\na, b.jpg,ant\n", "line 2: 3 values.*must stand in quotes"),
        (b'path,label\n"1.jpg,ant\n', "line 2: this is no CSV"),
        (b"\xff\xfep\x00a\x00", "this is UTF-16; save it as UTF-8"),
    ],
)
def test_lists_that_are_refused(tmp_path, content, message):
    with pytest.raises((InvalidDatasetError, ConfigError), match=message):
        read(tmp_path, content)


def test_missing_columns_are_named_together_with_those_there_are(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, b"file,class\n1.jpg,ant\n")
    assert [problem.key for problem in caught.value.problems] == ["path_column", "label_column"]
    assert "there are file, class" in str(caught.value)
    with pytest.raises(ConfigError, match="is the delimiter right"):
        read(tmp_path, b"path;label\n1.jpg;ant\n")


def test_a_list_in_another_encoding_is_refused(tmp_path):
    with pytest.raises(InvalidDatasetError, match=r"no text in cp1252.*see the key encoding"):
        read(tmp_path, b"path,label\n\x81.jpg,ant\n", encoding="cp1252")


def test_an_input_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.zip")
    refuse_special(tmp_path)
    for place, message in (
        ("x.zip", "a FIFO"),
        ("/dev/zero", "is a device"),
        ("x" * 5000, "can't be read"),
        ("no", "no such"),
    ):
        with pytest.raises(InvalidDatasetError, match=message):
            refuse_special(tmp_path / place)


def test_files_that_are_no_files_are_not_read(tmp_path):
    (tmp_path / "x.jpg").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "y.jpg")
    with pytest.raises(InvalidDatasetError, match="2 of 2 files do not exist or are no regular files: x"):
        sizes_of(tmp_path / "l.csv", tmp_path, ["x.jpg", "y.jpg"])


def test_files_that_are_not_there_are_counted(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"12345")
    assert sizes_of(tmp_path / "l.csv", tmp_path, ["1.jpg", str(tmp_path / "1.jpg")]) == [5, 5]
    names = ["1.jpg", *(f"no{number}.jpg" for number in range(7)), "nul\0.jpg"]
    with pytest.raises(InvalidDatasetError) as caught:
        sizes_of(tmp_path / "l.csv", tmp_path, names)
    assert "8 of 9 files do not exist or are no regular files: no0.jpg, no1.jpg" in str(caught.value)
    assert "root=FOLDER" in str(caught.value)


def test_an_address_of_an_image_is_refused(tmp_path):
    tree = TREE | {"images": [image | {"file_name": "https://host/1.jpg"} for image in TREE["images"]]}
    with pytest.raises(InvalidDatasetError, match="the file_name of an image is a remote address"):
        read_coco(write(tmp_path, tree), "first")


def test_an_address_in_a_list_is_refused_by_its_line(tmp_path):
    with pytest.raises(InvalidDatasetError, match="line 3: the path is a remote address, but only local paths"):
        read(tmp_path, b"path,label\na.jpg,ant\ns3://bucket/b.jpg,bee\n")
