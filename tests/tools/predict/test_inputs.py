from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from runner.base.errors import InvalidDatasetError
from runner.tools.predict.inputs import read_inputs

CLASSES = ("ant", "bee")


@pytest.fixture
def folder(tmp_path):
    for name in ("ant/2.jpg", "ant/1.JPG", "other/x.png", "a.png", ".hidden.png", "ant/deep/er.webp"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "notes.txt").write_text("x")
    return tmp_path / "in"


def test_a_folder_is_read_however_deep_in_the_order_of_its_names(folder):
    inputs = read_inputs(str(folder), None, CLASSES)
    assert inputs.names == ["a.png", "ant/1.JPG", "ant/2.jpg", "ant/deep/er.webp", "other/x.png"]
    assert inputs.labels == [None, "ant", "ant", "ant", None]
    assert all(Path(file).is_file() for file in inputs.files)
    assert inputs.notes == ("input: left out 1 hidden (/.hidden.png), 1 without an image extension (/notes.txt)",)
    assert read_inputs(str(folder), None, ("wasp",)).labels is None


def test_a_list_starts_at_its_own_folder_or_at_root(folder, tmp_path):
    (folder / "list.txt").write_bytes('\ufeffant/1.JPG\r\n\r\n/abs/olute.png\r\nwith "quotes", commas.png'.encode())
    inputs = read_inputs(str(folder / "list.txt"), None, CLASSES)
    assert inputs.names == ["ant/1.JPG", "/abs/olute.png", 'with "quotes", commas.png']
    assert inputs.files[:2] == [f"{folder}/ant/1.JPG", "/abs/olute.png"]
    assert read_inputs(str(folder / "list.txt"), str(tmp_path), CLASSES).files[0] == f"{tmp_path}/ant/1.JPG"


def test_a_csv_brings_labels_the_model_need_not_know(folder):
    (folder / "list.csv").write_bytes(b'\xef\xbb\xbflabel,path\r\nwasp,"a ""b"",\r\nc.png"\r\n,ant/1.JPG\r\n')
    inputs = read_inputs(str(folder / "list.csv"), None, CLASSES)
    assert (inputs.names, inputs.labels) == (['a "b",\r\nc.png', "ant/1.JPG"], ["wasp", None])


def test_one_image(folder):
    inputs = read_inputs(str(folder / "a.png"), None, CLASSES)
    assert (list(inputs.names), inputs.labels) == ([str(folder / "a.png")], None)


def test_another_list_is_another_digest(folder):
    (folder / "one.txt").write_text("a.png\nb.png\n")
    (folder / "two.txt").write_text("b.png\na.png\n")
    digests = [read_inputs(str(folder / name), None, CLASSES).digest() for name in ("one.txt", "two.txt", "one.txt")]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "there is no such file or folder; expected a folder, an image"),
        ("data.json", b"{}", "of an unknown kind; expected a folder"),
        ("empty.txt", b"\n \n", "the list is empty"),
        ("empty.csv", b"", "has no column `path`; it is empty"),
        ("other.csv", b"file,label\nx,y\n", "has no column `path`; its columns are 'file', 'label'"),
        ("short.csv", b"label,path\nx\n", "line 2: too few columns"),
        ("latin.txt", b"caf\xe9.png\n", "can't be read as UTF-8 text"),
        ("latin.csv", b"path\ncaf\xe9.png\n", "can't be read as CSV"),
    ],
)
def test_inputs_without_images_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidDatasetError, match=message):
        read_inputs(str(tmp_path / name), None, CLASSES)


def test_an_empty_folder_and_a_missing_root_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("path\na.png\n")
    with pytest.raises(InvalidDatasetError, match="root = /none: there is no such folder"):
        read_inputs(str(tmp_path / "x.csv"), "/none", CLASSES)
    with pytest.raises(InvalidDatasetError, match=r"no image in this folder .*left out 1 without an image extension"):
        read_inputs(str(tmp_path), None, CLASSES)


@pytest.mark.parametrize(("name", "head"), [("list.txt", ""), ("list.csv", "path\n")])
def test_an_address_in_a_list_is_refused(tmp_path, name, head):
    (tmp_path / name).write_text(f"{head}1.png\nhttps://host/2.png\n")
    with pytest.raises(InvalidDatasetError, match="image 2 of the list is a remote address, but only local paths"):
        read_inputs(str(tmp_path / name), None, CLASSES)
