from __future__ import annotations

import json

import pytest

from runner.base.errors import CheckpointError
from runner.run.contents import Manifest, RunRecord, read_classes, read_lines, read_object, read_pointer, read_rows

RECORD = {"status": "running", "attempts": 1, "unknown": [1]}


def test_an_object_is_returned_unchanged_with_keys_that_the_schema_does_not_name(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    assert read_object(tmp_path / "run.json", RunRecord) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "lost"}, "status: must be 'running'"),
        ({"attempts": "1"}, "attempts: must be a whole number"),
        ({"attempts": -1, "world_size": 0}, r"attempts: .*\(and 1 more\)"),
        ({"\x1b[31m": 1, "best": {"metric": "x"}}, "best.value: is missing"),
    ],
)
def test_the_first_key_that_does_not_fit_the_schema_is_named(tmp_path, change, message):
    (tmp_path / "run.json").write_text(json.dumps(RECORD | change))
    with pytest.raises(CheckpointError, match=rf"run.json is damaged: {message}"):
        read_object(tmp_path / "run.json", RunRecord)


def test_a_missing_file_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest\.json"):
        read_object(tmp_path / "manifest.json", Manifest)
    assert read_rows(tmp_path / "metrics.jsonl") == ()
    assert read_pointer(tmp_path / "last") is None


def test_a_last_line_that_a_kill_cut_short_is_left_out_and_another_one_is_damaged(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"epoch": 1}\n{"epoch": 2, "val_loss": 0.5}\n{"epo')
    assert read_rows(file) == ({"epoch": 1}, {"epoch": 2, "val_loss": 0.5})
    assert [text for _, text in read_lines(file)] == ['{"epoch": 1}\n', '{"epoch": 2, "val_loss": 0.5}\n']
    file.write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl is damaged: .*line 2"):
        read_rows(file)


def test_classes_are_a_list_of_different_names(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no classes\.json: the run has not begun, or is damaged"):
        read_classes(tmp_path)
    (tmp_path / "classes.json").write_text('["b", "a"]')
    assert read_classes(tmp_path) == ("b", "a")
    (tmp_path / "classes.json").write_text('["a", "a"]')
    with pytest.raises(CheckpointError, match="holds no list of different names"):
        read_classes(tmp_path)


@pytest.mark.parametrize("content", ["../../etc/passwd", "", "0001-1/..", "x" * 300])
def test_a_pointer_holds_the_name_of_a_checkpoint_and_nothing_else(tmp_path, content):
    (tmp_path / "last").write_text("0001-00000005\n")
    assert read_pointer(tmp_path / "last") == "0001-00000005"
    (tmp_path / "last").write_text(content)
    with pytest.raises(CheckpointError, match="last "):
        read_pointer(tmp_path / "last")
