"""What users are told to install is what pyproject.toml declares, and never `runner[…]` of the package index."""

from __future__ import annotations

import re
import tomllib

import pytest

from runner.base.errors import how_to_install
from tests.conftest import ROOT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["slurm", "export", "parquet", "sweep"])
def test_the_libraries_are_named_with_their_ranges(extra):
    assert sorted(re.findall(r'"(.+?)"', how_to_install(extra))) == sorted(DECLARED[extra])


def test_a_copy_that_was_never_installed_names_the_extra_of_its_own_source(monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda _: None)
    assert how_to_install("sweep") == "pip install '.[sweep]' in the runner's source"


def test_docs_and_messages_send_nobody_to_another_project():
    known = {f'"{requirement}"' for requirements in DECLARED.values() for requirement in requirements}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "runner").rglob("*.py"))]
    for page in pages:
        text = page.read_text()
        assert not re.search(r"pip install ['\"]?runner\b", text), page
        for command in re.findall(r'`pip install ((?:"[^"`]+" ?)+)`', text):
            assert {*re.findall(r'"[^"]+"', command)} <= known, (page, command)
