from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.base.errors import OutputError
from runner.tools.dataset.staging import new_folder, refuse_within

ROOT = Path(__file__).parents[3]


def test_a_folder_appears_whole(tmp_path):
    output = tmp_path / "a" / "out"
    with new_folder(output) as folder:
        (folder / "1.txt").write_text("x")
        assert not output.exists()
    assert (output / "1.txt").read_text() == "x"
    assert [path.name for path in output.parent.iterdir()] == ["out"]


def test_a_block_that_raises_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "out") as folder:
        (folder / "1.txt").write_text("x")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_was_created_meanwhile_is_not_changed(tmp_path):
    output = tmp_path / "out"
    with pytest.raises(OutputError, match="already exists and is never overwritten"), new_folder(output) as folder:
        (folder / "mine").write_text("x")
        output.mkdir()
        (output / "theirs").write_text("y")
    assert [path.name for path in output.iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["out", "out[1]*"])
def test_leftovers_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path, name):
    output = tmp_path / name
    code = (
        "import sys, time; from pathlib import Path; from runner.tools.dataset.staging import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('x'); print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(output)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        (theirs,) = tmp_path.iterdir()
        with new_folder(output):
            assert theirs.exists()
        output.rmdir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with new_folder(output):
        assert not theirs.exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_that_leads_to_itself_is_no_place_that_the_output_lies_in(tmp_path):
    loop = tmp_path / "x.csv"
    loop.symlink_to(loop)
    refuse_within(tmp_path / "out", loop)
