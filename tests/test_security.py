"""SECURITY.md names what is there."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| .+? \| (\[tests/.+\]\(.+\)) \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_what_it_links_to_is_there(path):
    assert (ROOT / path).is_file()


def test_each_promise_names_its_test():
    table = TEXT.partition("## Promises")[2].partition("\n## ")[0]
    assert len(PROMISES) == table.count("\n| ") - 2  # but for the head and the line below it
    for cell in PROMISES:
        for path in re.findall(r"\]\((.+?)\)", cell):
            assert "def test_" in (ROOT / path).read_text(encoding="utf-8"), path


def test_it_names_the_supported_versions_of_the_package():
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    python, torch = (re.search(pattern, declared)[1] for pattern in (r'requires-python = ">=(.+?)"', r'"torch>=(.+?)"'))
    assert f"Python from {python} and torch from {torch} on" in TEXT.replace("\n", " ")


def test_the_hashed_list_is_of_the_same_versions():
    constraints = (ROOT / "constraints.txt").read_text().lower().split()
    hashed = [line for line in (ROOT / "requirements-hashed.txt").read_text().lower().splitlines() if line[0] != "#"]
    assert sorted(line.partition(" ")[0] for line in hashed) == sorted(constraints)
    assert all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in hashed)


def test_actions_of_workflows_are_named_by_commit():
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        text = workflow.read_text()
        assert "\npermissions:\n  contents: read\n" in text
        used = re.findall(r"uses: (\S+)", text)
        assert used
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used), used
