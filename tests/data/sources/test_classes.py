"""Names of classes that are hardly meant as they are."""

from __future__ import annotations

import pytest

from runner.data.sources.classes import odd_names, odd_names_note
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits


@pytest.mark.parametrize(
    "alike",
    [("A", "a"), ("2", "2.0"), ("1e1", "10"), ("caf\u00e9", "cafe\u0301"), ("ant", "ant "), ("ß", "ss"), ("ﬁ", "fi")],
)
def test_names_that_are_alike(alike):
    (odd,) = odd_names(["other", *alike, "x1"])
    assert odd.names == alike


@pytest.mark.parametrize("name", ["nan", "NaN", "None", "null", "<NA>", " n/a"])
def test_names_of_missing_values(name):
    (odd,) = odd_names(["ant", name])
    assert (odd.names, odd.reason) == ((name,), "looks like a missing value")


def test_usual_names_are_not_odd():
    names = ["ant", "bee", "0", "1", "10", "2.5", "cat", "catfish", "nanny", "inf", "1_0", "e1", "日本", "ä", "a"]
    assert odd_names(names) == ()
    assert odd_names_note(names) == ()


def test_odd_names_are_noted_for_a_data_set(tmp_path, write_images, data_config):
    write_images(tmp_path / "train", {"caf\u00e9": 3, "cafe\u0301": 3, "nan": 3})
    notes = open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1).notes
    assert notes[-1] == (
        r"are these classes meant as they are? 'cafe\u0301' and 'caf\xe9' differ in case, Unicode form, spaces or the "
        "spelling of a number only; 'nan' looks like a missing value"
    )
