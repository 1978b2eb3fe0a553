"""What CONTRIBUTING.md tells a newcomer is true of the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_architecture import FLOORS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted({path for path in re.findall(r"`([\w./*-]+)`", TEXT) if "/" in path})
CHANGES = re.findall(r"^\| ([a-z].*?) \| (.*) \|$", TEXT.partition("| a new … |")[2].partition("\n\n")[0], re.MULTILINE)


@pytest.mark.parametrize("path", PATHS)
def test_each_path_that_is_named_exists(path):
    # NAME stands for whatever is called so.
    assert list(ROOT.glob(path.replace("NAME", "*").rstrip("/"))), path


def test_ten_common_changes_touch_at_most_four_files_each():
    assert len(CHANGES) == 10
    for change, files in CHANGES:
        assert 1 <= len(re.findall(r"`[\w./]+/[\w./]+`", files)) <= 4, change


def test_the_picture_shows_each_room_on_its_floor():
    lines = iter(TEXT.split("```")[1].splitlines())
    for floor in reversed(FLOORS):
        rooms = floor - {""}
        assert any(rooms <= set(re.findall(r"\w+", line)) for line in lines), f"{rooms} are not below what lies above"
