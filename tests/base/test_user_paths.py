from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from runner.base.errors import CheckpointError, ConfigError
from runner.base.user_paths import refuse_ways_out, refuse_ways_out_at, typed_path


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run" / "checkpoints" / "0001-00000005").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["logs", "run.json.link", "checkpoints/0002-00000009", "checkpoints/last"])
@pytest.mark.parametrize("target", ["{tmp}/elsewhere", "../../elsewhere", "{tmp}/not-there", "/dev/zero", "/"])
def test_a_link_that_leads_out_is_named_with_its_target(run, name, target):
    (run / name).symlink_to(target.format(tmp=run.parent))
    with pytest.raises(CheckpointError, match=rf"{run / name} leads to .*links out of a run, sweep"):
        refuse_ways_out(run)
    with pytest.raises(CheckpointError, match=str(run / name)):
        refuse_ways_out_at(run, [f"{name}/x" if name == "logs" else name, name])


def test_what_is_no_file_is_refused(run):
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a FIFO"):
        refuse_ways_out(run)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a FIFO"):
        refuse_ways_out_at(run, ["metrics.jsonl"])
    (run / "metrics.jsonl").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run / "report.html"))
        with pytest.raises(CheckpointError, match=r"report\.html is a FIFO"):
            refuse_ways_out(run)


def test_links_in_a_circle_are_refused(run):
    (run / "a").symlink_to("b")
    (run / "b").symlink_to("a")
    with pytest.raises(CheckpointError, match="leads to"):
        refuse_ways_out(run)


def test_the_folder_itself_may_be_a_link_and_links_may_stay_inside(run):
    (run / "newest").symlink_to("checkpoints/0001-00000005")
    own = run.parent / "own"
    own.symlink_to(run)
    refuse_ways_out(own)
    refuse_ways_out_at(own, ["run.json", "newest", "nothing"])
    refuse_ways_out(run.parent / "not-there")


def test_escape_sequences_in_a_name_are_shown(run):
    (run / "a\x1b]0;owned\x07").symlink_to("/etc")
    with pytest.raises(CheckpointError) as caught:
        refuse_ways_out(run)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("text", ["a\0b", "~nosuchuser/run"])
def test_what_is_no_path_is_refused_by_its_key(text):
    with pytest.raises(ConfigError, match=r"run = .*is no path"):
        typed_path(text, "run")
