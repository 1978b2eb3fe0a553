import json

import pytest

from runner.base.errors import CheckpointError
from runner.tools.runs.past import describe_metric, describe_seconds, elapsed_seconds, read_rows, read_run, status_of
from tests.made_runs import make_run, record, row


def test_a_run_is_read_whole(tmp_path):
    run = read_run(make_run(tmp_path / "run", rows=(row(1), row(2))))
    assert (run.status, run.rows[1]["epoch"], run.config["seed"]) == ("completed", 2, 1)
    assert (run.evaluation, run.state) == (None, {})


def test_a_run_that_says_running_without_a_process_has_died(tmp_path):
    import fcntl

    folder = make_run(tmp_path / "run", status="running", end=None)
    log = folder / "logs" / "rank_0.log"
    with log.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert status_of(folder, record(status="running")) == "running"
    assert status_of(folder, record(status="running")) == "died"


def test_the_time_of_a_dead_run_ends_with_its_last_word(tmp_path):
    import os

    folder = make_run(tmp_path / "run")
    for name in ("run.json", "logs/rank_0.log"):
        os.utime(folder / name, (1795168860, 1795168860))  # 2026-11-20T10:01:00Z
    assert elapsed_seconds(folder, record(status="running", end=None)) == 60
    assert elapsed_seconds(folder, record()) == 125
    assert elapsed_seconds(folder, record(start="yesterday")) is None
    assert elapsed_seconds(folder, {"status": "failed"}) is None


def test_a_line_that_a_kill_cut_short_is_left_out_and_another_damage_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_rows(file) == ()
    file.write_text(json.dumps(row(1)) + '\n{"epoch": 2, "lr"')
    assert [values["epoch"] for values in read_rows(file)] == [1]
    for damage in ("{\n", '{"step": 3}\n', "[]\n", '{"epoch": "one"}\n'):
        file.write_text(damage)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
            read_rows(file)


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "evaluation/metrics.json"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = make_run(tmp_path / "run")
    (folder / "evaluation").mkdir()
    (folder / name).write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match=name.rpartition("/")[2]):
        read_run(folder)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min"), (90_000, "1 d 01 h")],
)
def test_durations_for_people(seconds, text):
    assert describe_seconds(seconds) == text


def test_metrics_for_people():
    assert (describe_metric("val_top1", 0.98765), describe_metric("val_loss", 0.5)) == ("98.77%", "0.5000")
