from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError
from runner.data.sources import index as index_module
from runner.data.sources.index import LeftOut, scan_class_folders


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def paths(folder: Path) -> list[str]:
    index = scan_class_folders(str(folder), key="data.train")
    return [index.path(image).removeprefix(f"{folder}/") for image in range(len(index))]


def left_out(folder: Path) -> tuple[LeftOut, ...]:
    return scan_class_folders(str(folder), key="data.train").left_out


def test_classes_labels_and_paths(tmp_path: Path) -> None:
    touch(tmp_path / "b/2.jpg", tmp_path / "b/10.JPG", tmp_path / "a/x.PNG", tmp_path / "a/deep/er/y.webp")
    index = scan_class_folders(str(tmp_path), key="data.train")
    assert index.classes == ("a", "b")
    assert index.labels.dtype == np.int64
    assert index.labels.tolist() == [0, 0, 1, 1]
    assert paths(tmp_path) == ["a/deep/er/y.webp", "a/x.PNG", "b/10.JPG", "b/2.jpg"]
    assert index.left_out == ()
    assert index.empty_classes() == ()


@pytest.mark.parametrize("extension", ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"])
def test_every_image_extension_in_any_case(tmp_path: Path, extension: str) -> None:
    touch(tmp_path / f"a/1.{extension}", tmp_path / f"a/2.{extension.upper()}", tmp_path / f"a/3.{extension.title()}")
    assert len(paths(tmp_path)) == 3


def test_names_of_every_kind(tmp_path: Path) -> None:
    names = ["Zebra/a b.jpg", "ant/ü.jpg", "ant/日本.jpg", "ünder/1.jpg", "ant/two\nlines.jpg"]
    touch(*(tmp_path / name for name in names))
    assert paths(tmp_path) == sorted(names, key=os.fsencode)
    assert scan_class_folders(str(tmp_path), key="data.train").classes == ("Zebra", "ant", "ünder")


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg")
    (tmp_path / "a" / os.fsdecode(b"\xff.jpg")).write_bytes(b"content")
    index = scan_class_folders(str(tmp_path), key="data.train")
    assert Path(index.path(1)).read_bytes() == b"content"


def test_class_names_that_are_no_utf8(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    with pytest.raises(InvalidDatasetError, match=r"\\xff is no UTF-8"):
        paths(tmp_path)


def test_what_is_left_out_is_counted_with_examples(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg", tmp_path / "b/1.jpg")
    touch(*(tmp_path / "a" / name for name in ("notes.txt", "anim.gif", "jpg", "x.jpg.part")))
    touch(tmp_path / ".DS_Store", tmp_path / "a/.hidden.jpg", tmp_path / "a/.git/1.jpg")
    touch(tmp_path / "a/Thumbs.db", tmp_path / "__MACOSX/a/1.jpg", tmp_path / "b/desktop.ini")
    touch(tmp_path / "loose.jpg", tmp_path / "README.md")
    (tmp_path / "a/gone.jpg").symlink_to("nowhere")
    (tmp_path / "a/self.jpg").symlink_to("self.jpg")
    os.mkfifo(tmp_path / "b/pipe.jpg")
    assert paths(tmp_path) == ["a/1.jpg", "b/1.jpg"]
    assert {entry.reason: (entry.count, entry.examples) for entry in left_out(tmp_path)} == {
        "without an image extension": (5, ("README.md", "a/anim.gif", "a/jpg")),
        "hidden": (3, (".DS_Store", "a/.git", "a/.hidden.jpg")),
        "of an operating system": (3, ("__MACOSX", "a/Thumbs.db", "b/desktop.ini")),
        "outside the class folders": (1, ("loose.jpg",)),
        "broken links": (2, ("a/gone.jpg", "a/self.jpg")),
        "neither file nor folder": (1, ("b/pipe.jpg",)),
    }


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere/1.jpg", tmp_path / "set/a/2.jpg", tmp_path / "set/a/sub/3.jpg")
    (tmp_path / "set/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/a/sub/up").symlink_to(tmp_path / "set/a")
    (tmp_path / "set/a/link.jpg").symlink_to(tmp_path / "elsewhere/1.jpg")
    assert paths(tmp_path / "set") == ["a/2.jpg", "a/link.jpg", "a/sub/3.jpg", "b/1.jpg"]
    assert left_out(tmp_path / "set") == (LeftOut("links back to a folder around them", 1, ("a/sub/up",)),)


def test_folders_that_are_endless_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "deep" / "a" / "/".join(["d"] * index_module._MAX_DEPTH) / "1.jpg")
    with pytest.raises(InvalidDatasetError, match="folders lie more than 64 deep in each other"):
        scan_class_folders(str(tmp_path / "deep"), key="data.train")


def test_links_that_lead_to_a_folder_in_too_many_ways_are_refused(tmp_path: Path) -> None:
    # Each folder links twice to the next: 2^30 paths to the last one.
    touch(tmp_path / "train" / "a" / "1.jpg")
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        for name in ("x", "y"):
            (tmp_path / f"{number}" / name).symlink_to(tmp_path / f"{number + 1}")
    touch(tmp_path / "30" / "1.jpg")
    (tmp_path / "train" / "a" / "link").symlink_to(tmp_path / "0")
    with pytest.raises(InvalidDatasetError, match="links lead to this folder in more than 100 ways"):
        scan_class_folders(str(tmp_path / "train"), key="data.train")


def test_names_in_messages_are_on_one_line_and_obeyed_by_no_terminal(tmp_path: Path) -> None:
    assert index_module.printable_path(b"a\n\x1b[2J\xff") == r"a\x0a\x1b[2J\xff"
    assert index_module.printable_path("\ud800\u202e") == r"\ud800\u202e"
    assert index_module.name_list(["a\nb", "x" * 1000]) == r"a\x0ab, " + "x" * 255


def test_the_order_does_not_depend_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(*(tmp_path / name for name in ("b/1.jpg", "a/3.jpg", "a/1.jpg", "a/s/2.jpg", "a/x.gif", "a/w.gif")))
    forwards = scan_class_folders(str(tmp_path), key="data.train")
    listed = os.scandir

    class Backwards:
        def __init__(self, folder: bytes) -> None:
            with listed(folder) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> Iterator[os.DirEntry[bytes]]:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(index_module.os, "scandir", Backwards)
    backwards = scan_class_folders(str(tmp_path), key="data.train")
    assert (backwards.classes, backwards.paths, backwards.left_out) == (
        forwards.classes,
        forwards.paths,
        forwards.left_out,
    )
    assert backwards.labels.tolist() == forwards.labels.tolist()


def test_empty_classes_keep_their_number(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg", tmp_path / "c/1.jpg")
    (tmp_path / "b").mkdir()
    index = scan_class_folders(str(tmp_path), key="data.train")
    assert (index.classes, index.labels.tolist(), index.empty_classes()) == (("a", "b", "c"), [0, 2], ("b",))


def test_an_index_is_compact_and_pickles(tmp_path: Path) -> None:
    touch(*(tmp_path / f"class_{number % 10}" / f"image_{number:05d}.jpg" for number in range(1000)))
    index = scan_class_folders(str(tmp_path), key="data.train")
    # 8 bytes for the offset and 8 for the label beside the path itself.
    assert len(pickle.dumps(index)) < 1000 * (len("class_0/image_00000.jpg") + 16) + 2000
    again = pickle.loads(pickle.dumps(index))
    assert [again.path(image) for image in range(1000)] == [index.path(image) for image in range(1000)]


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=rf"data.train = {tmp_path}/x: there is no such folder; expected"):
        paths(tmp_path / "x")


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    touch(tmp_path / "x")
    with pytest.raises(InvalidDatasetError, match="this is a file, not a folder"):
        paths(tmp_path / "x")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=f"data.train = {tmp_path}: the folder is empty; expected"):
        paths(tmp_path)


def test_loose_images_have_no_labels(tmp_path: Path) -> None:
    touch(tmp_path / "1.jpg", tmp_path / "2.jpg", tmp_path / ".DS_Store")
    with pytest.raises(NotLabeledDatasetError) as caught:
        paths(tmp_path)
    assert f"{tmp_path}: holds images (2), but no class folders" in str(caught.value)
    assert f"{tmp_path}/<class A>/1.jpg" in str(caught.value)


@pytest.mark.parametrize("name", [".DS_Store", "readme.txt", ".git/1.jpg"])
def test_neither_class_folders_nor_images(tmp_path: Path, name: str) -> None:
    touch(tmp_path / name)
    with pytest.raises(NotLabeledDatasetError, match="no class folders and no images"):
        paths(tmp_path)


def test_class_folders_without_any_image(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.gif", tmp_path / "b/notes.txt")
    with pytest.raises(InvalidDatasetError) as caught:
        paths(tmp_path)
    assert "no image in any of the 2 class folders" in str(caught.value)
    assert "2 without an image extension (a/1.gif, b/notes.txt)" in str(caught.value)
    assert "jpg, jpeg, png" in str(caught.value)


@pytest.mark.parametrize("refused", ["", "/a", "/a/deep"])
def test_folders_that_may_not_be_read(tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "a/deep/1.jpg", tmp_path / "b/1.jpg")
    listed = os.scandir

    def scandir(folder: bytes) -> Iterator[os.DirEntry[bytes]]:
        if folder == os.fsencode(f"{tmp_path}{refused}"):
            # Tests may run as root, whom no permission stops.
            raise PermissionError(13, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr(index_module.os, "scandir", scandir)
    with pytest.raises(InvalidDatasetError, match=rf"{tmp_path}{refused}: can't be read: this user may not"):
        paths(tmp_path)


def test_reading_costs_no_torch() -> None:

    modules = ("base.keyed_random", "data.sources.paths", "data.splits", "data.loader.order", "data.loader.workers")
    code = ";".join(f"import runner.{module}" for module in modules)
    code += ";import sys; print([name for name in ('torch', 'torchvision', 'sklearn') if name in sys.modules])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout
    assert printed.strip() == "[]"
