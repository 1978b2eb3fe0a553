"""The runner imports nothing from a folder that it is merely started in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHADOWS = ("difflib.py", "yaml.py", "hydra.py", "sqlite3.py", "evil.py", "hydra_plugins/evil.py", "runner_conf.py")


@pytest.fixture
def theirs(tmp_path):
    """A folder of somebody else's, with modules of well-known names, a plugin of Hydra's and an entry point."""
    for name in SHADOWS:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(tmp_path / 'trace')!r}, 'a').write({name!r})\n")
    facts = tmp_path / "evil-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[runner.models]\nevil = evil:build\n")
    return tmp_path


@pytest.mark.parametrize("start", [("-m", "runner"), ("-c", "from runner.__main__ import run_and_leave as r; r()")])
def test_nothing_is_imported_from_the_working_folder(theirs, start):
    safe = ("-P",) if start[0] == "-c" else ()  # the console script's folder is bin/, not the working folder
    done = subprocess.run(
        [sys.executable, *safe, *start, "validate", "model=custom", "model.name=evil"],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, (theirs / "trace").exists()) == (2, False), done.stderr
    assert "no installed package offers it" in done.stderr
