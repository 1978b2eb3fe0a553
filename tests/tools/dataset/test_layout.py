from __future__ import annotations

import pytest

from runner.base.errors import InvalidDatasetError
from runner.data.sources.index import NO_CLASS
from runner.tools.dataset.layout import NO_SPLIT, ImagePlace, class_folders, lay_out, output_paths, reason_to_leave_out


@pytest.mark.parametrize("wrapper", ["", "photos/", "a/b/c/"])
@pytest.mark.parametrize("split", ["", "train/"])
def test_folders_around_everything_are_passed(wrapper, split):
    names = [f"{wrapper}{split}ants/1.jpg", f"{wrapper}{split}ants/deep/2.jpg", f"{wrapper}{split}bees/1.jpg"]
    places = lay_out(names, "top").places
    assert list(places.values()) == [
        ImagePlace(split[:-1], "ants", "1.jpg"),
        ImagePlace(split[:-1], "ants", "deep/2.jpg"),
        ImagePlace(split[:-1], "bees", "1.jpg"),
    ]


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (["train", "val"], ["train", "val"]),
        (["Training", "Validation", "TEST"], ["train", "val", "test"]),
        (["train", "valid", "notes"], ["train", "val", None]),
        (["train", "dev"], ["train", "val"]),
    ],
)
def test_splits_are_known_by_name(folders, splits):
    layout = lay_out([f"{folder}/{label}/1.jpg" for folder in folders for label in ("ants", "bees")], "top")
    found = [layout.places.get(f"{folder}/ants/1.jpg") for folder in folders]
    assert [place and place.split for place in found] == splits
    assert len(layout.left_out[NO_SPLIT]) == 2 * splits.count(None)


def test_classes_may_be_called_like_splits():
    places = lay_out(["train/1.jpg", "bus/1.jpg", "test/1.jpg"], "top").places
    assert {place.label for place in places.values()} == {"train", "bus", "test"}
    # A class `train` with subfolders, beside others that are no splits.
    places = lay_out(["train/steam/1.jpg", "bus/red/1.jpg"], "top").places
    assert {(place.split, place.label) for place in places.values()} == {("", "train"), ("", "bus")}


def test_a_folder_of_one_class_named_like_a_split_is_a_class():
    layout = lay_out(["train/ants/a/1.jpg", "train/bees/a/1.jpg", "val/ants/a/1.jpg"], "top")
    assert layout.places["val/ants/a/1.jpg"] == ImagePlace("val", "ants", "a/1.jpg")


def test_two_folders_for_the_same_split_are_refused():
    with pytest.raises(InvalidDatasetError, match="val, valid stand for the same split"):
        lay_out([f"{folder}/ants/1.jpg" for folder in ("train", "val", "valid")], "top")


def test_the_innermost_folder_may_be_the_class():
    names = ["monday/ants/1.jpg", "monday/bees/1.jpg", "tuesday/ants/1.jpg"]
    top = lay_out(names, "top").places
    assert {place.label for place in top.values()} == {"monday", "tuesday"}
    parent = lay_out(names, "parent").places
    assert {place.label for place in parent.values()} == {"ants", "bees"}


def test_images_outside_of_class_folders_are_left_out_and_listed():
    layout = lay_out(["photos/cover.jpg", "photos/ants/1.jpg", "photos/bees/1.jpg", "top.jpg"], "top")
    assert sorted(layout.places) == ["photos/ants/1.jpg", "photos/bees/1.jpg"]
    assert layout.left_out[NO_CLASS] == ["photos/cover.jpg", "top.jpg"]
    assert lay_out(["1.jpg", "2.jpg"], "top").places == {}
    assert lay_out([], "top").places == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a/1.JPG", None),
        ("a/1.webp", None),
        ("a/.1.jpg", "hidden"),
        (".git/1.jpg", "hidden"),
        ("__MACOSX/a/1.jpg", "of an operating system"),
        ("a/Thumbs.db", "of an operating system"),
        ("a/notes.txt", "without an image extension"),
        ("a/jpg", "without an image extension"),
    ],
)
def test_reasons_to_leave_out(name, reason):
    assert reason_to_leave_out(name) == reason


def paths_of(names: dict[str, str]) -> dict[str, str]:
    places = {name: ImagePlace("", "ants", below) for name, below in names.items()}
    return output_paths(places, {"ants": "ants"})


def test_equal_names_are_made_different_without_loss():
    paths = paths_of({name: name for name in ("1.jpg", "a/1.jpg", "a/1.JPG", "b/1.jpg", "b__1.jpg", "b/1-2.jpg")})
    assert paths["1.jpg"] == "ants/1.jpg"
    assert (paths["a/1.JPG"], paths["a/1.jpg"]) == ("ants/a__1.JPG", "ants/1-2.jpg")
    assert len({path.casefold() for path in paths.values()}) == len(paths)
    assert all(path.lower().endswith(".jpg") for path in paths.values())
    # The same whatever the order.
    assert paths == paths_of(dict(reversed([(name, name) for name in paths])))


def test_a_name_fits_into_255_bytes_and_is_not_hidden():
    long = "ü" * 125 + ".jpeg"
    paths = paths_of({name: name for name in (long, f"a/{long}", f"b/{long}", ".x.jpg")})
    assert len(set(paths.values())) == 4
    for path in paths.values():
        assert len(path.rpartition("/")[2].encode()) <= 255
        assert not path.rpartition("/")[2].startswith(".")
        assert path.endswith((".jpeg", ".jpg"))


def test_class_names_become_possible_folders():
    assert class_folders(["AC/DC", ".hidden", "ants", "Thumbs.db"]) == {
        "AC/DC": "AC_DC",
        ".hidden": "_hidden",
        "ants": "ants",
        "Thumbs.db": "_Thumbs.db",
    }
    assert class_folders([".."]) == {"..": "_."}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a/b", "a_b"], "would share the folder"),
        (["  "], "an empty name"),
        (["x" * 256], "longer than 255 bytes"),
        (["\udcff"], "is no UTF-8"),
    ],
)
def test_class_names_that_are_refused(labels, message):
    with pytest.raises(InvalidDatasetError, match=message):
        class_folders(labels)
