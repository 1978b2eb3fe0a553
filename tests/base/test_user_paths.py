"""Typed paths, and links in folders from others."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from runner.base.errors import CheckpointError, ConfigError
from runner.base.user_paths import (
    refuse_address,
    refuse_listed_address,
    refuse_outside_links,
    refuse_outside_links_at,
    scheme_of,
    typed_path,
)


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
        refuse_outside_links(run)
    with pytest.raises(CheckpointError, match=str(run / name)):
        refuse_outside_links_at(run, [f"{name}/x" if name == "logs" else name, name])


def test_what_is_no_file_is_refused(run):
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a FIFO"):
        refuse_outside_links(run)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a FIFO"):
        refuse_outside_links_at(run, ["metrics.jsonl"])
    (run / "metrics.jsonl").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run / "report.html"))
        with pytest.raises(CheckpointError, match=r"report\.html is a FIFO"):
            refuse_outside_links(run)


def test_links_in_a_circle_are_refused(run):
    (run / "a").symlink_to("b")
    (run / "b").symlink_to("a")
    with pytest.raises(CheckpointError, match="leads to"):
        refuse_outside_links(run)


def test_the_folder_itself_may_be_a_link_and_links_may_stay_inside(run):
    (run / "newest").symlink_to("checkpoints/0001-00000005")
    own = run.parent / "own"
    own.symlink_to(run)
    refuse_outside_links(own)
    refuse_outside_links_at(own, ["run.json", "newest", "nothing"])
    refuse_outside_links(run.parent / "not-there")


def test_escape_sequences_in_a_name_are_shown(run):
    (run / "a\x1b]0;owned\x07").symlink_to("/etc")
    with pytest.raises(CheckpointError) as caught:
        refuse_outside_links(run)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("text", ["a\0b", "~nosuchuser/run"])
def test_what_is_no_path_is_refused_by_its_key(text):
    with pytest.raises(ConfigError, match=r"run = .*is no path"):
        typed_path(text, "run")


def test_the_home_folder_is_meant_by_its_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert typed_path("~/zz", "output_dir") == Path("/home/anna/zz")
    assert typed_path("a/../b", "output_dir") == Path("a/../b")


@pytest.mark.parametrize("text", ["~nosuchuser/x", "a\0b", "x/" * 3_000])
def test_what_is_no_path_is_refused_with_its_key(text):
    with pytest.raises(ConfigError, match="output_dir"):
        typed_path(text, "output_dir")


@pytest.mark.parametrize("text", ["C:\\x", "C:/x", "C://x", "a:b", "/x/s3:/b", "://x", "s3:/x", "2a://x", "ü://x", ""])
def test_what_only_looks_like_an_address_stays_a_path(text):
    assert scheme_of(text) is None
    assert refuse_address(text) == text


@pytest.mark.parametrize("text", ["s3://b/x", "gs://b", "hf://m", "HTTPS://h/x", " http://h", "abfss://c@a/x"])
def test_an_address_is_no_path(text):
    with pytest.raises(ConfigError, match=r"output_dir = .*: is a remote address, but only local .* copy files here"):
        typed_path(text, "output_dir")


def test_of_a_file_its_path_is_to_be_typed():
    with pytest.raises(ConfigError, match="type the path alone, without file://"):
        typed_path("file:///data/x", "output_dir")


def test_a_signature_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        typed_path("https://host/x?X-Amz-Signature=CANARY#CANARY", "run")
    assert "run = 'https://host/x?***'" in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_a_long_text_is_judged_at_once():
    assert scheme_of("a" * 10_000_000 + "://") is None


def test_an_entry_of_a_list_is_told_by_its_line_alone():
    refuse_listed_address("a/1.jpg", 3)
    with pytest.raises(ValueError, match=r"^line 3: the path is a remote address") as caught:
        refuse_listed_address("s3://secret/1.jpg", 3)
    assert "secret" not in str(caught.value)
