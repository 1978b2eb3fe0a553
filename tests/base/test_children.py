"""A working folder of somebody else: nothing in it is imported, by the command or by what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL_NET, TINY

# Modules that Python, torch and we import, some of them at once, some late.
NAMES = ("difflib", "pickle", "socket", "selectors", "struct", "mmap", "safetensors", "numpy", "submitit", "evil")
OURS = (*TINY, *SMALL_NET, "trainer.epochs=1")


@pytest.fixture
def hostile(tmp_path):
    """A folder that tells of each module that is imported from it, and the file in which it does."""
    folder, told = tmp_path / "hostile", tmp_path / "told.txt"
    folder.mkdir()
    told.touch()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"import os\nfd = os.open({str(told)!r}, os.O_WRONLY | os.O_APPEND)\nos.write(fd, b'{name} ')\n"
        )
    (folder / "hydra_plugins").mkdir()
    (folder / "hydra_plugins" / "evil_plugin.py").write_text((folder / "evil.py").read_text())
    info = folder / "evil-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[runner.models]\nevil = evil:net\n")
    return folder, told


def typed(folder, *argv):
    script = folder.parent / "bin" / "runner"
    script.parent.mkdir(exist_ok=True)
    script.write_text("from runner.__main__ import run_and_leave\nif __name__ == '__main__':\n    run_and_leave()\n")
    return subprocess.run(
        [sys.executable, str(script), *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "argv",
    [
        ("dist.procs_per_node=2", "data.workers=1"),
        ("-m", "optimizer.lr=0.01,0.02", "sweep.parallel=2"),
    ],
)
def test_neither_the_command_nor_its_children_import_from_the_working_folder(hostile, argv):
    folder, told = hostile
    done = typed(folder, *OURS, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert told.read_text() == ""


def test_a_model_that_the_working_folder_offers_is_none(hostile):
    folder, told = hostile
    done = typed(folder, *OURS[: len(TINY)], "model=custom", "model.name=evil")
    assert done.returncode == 2 and "InvalidModelError" in done.stderr
    assert told.read_text() == ""


def test_python_m_imports_only_stdlib_startup_modules_from_the_working_folder(tmp_path):
    """Python's own rule for -m; our modules, their children and what these import come from elsewhere."""
    told = tmp_path / "told.txt"
    for name in ("difflib", "numpy", "submitit", "safetensors"):
        (tmp_path / f"{name}.py").write_text(f"open({str(told)!r}, 'a').write('{name} ')\n")
    done = subprocess.run(
        [sys.executable, "-m", "runner", *OURS, "data.workers=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not told.exists()


def test_a_script_that_imports_the_runner_keeps_its_own_path(monkeypatch):
    from runner.base.children import safe_path_for_children

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = list(sys.path)
    with safe_path_for_children():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ and sys.path == before


def test_a_source_checkout_as_working_folder_is_found_by_children(monkeypatch):
    from runner.base import children

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), "/elsewhere"])
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    children.remove_working_folder_from_path()
    assert sys.path[0] == str(ROOT)
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ["/of/the/user", str(ROOT)]


def test_another_working_folder_is_left_out(monkeypatch, tmp_path):
    from runner.base import children

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), "/elsewhere"])
    children.remove_working_folder_from_path()
    assert sys.path == ["/elsewhere"]
