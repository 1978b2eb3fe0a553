import json

import pytest

from runner.base.errors import CheckpointError
from runner.tools.runs.past import (
    compare_runs,
    describe_metric,
    describe_seconds,
    elapsed_seconds,
    read_rows,
    read_run,
    status_of,
)
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


def test_only_differences_are_shown(tmp_path):
    first = make_run(tmp_path / "a", rows=(row(1),), data={"fingerprint": "1", "num_train": 5})
    second = make_run(
        tmp_path / "b",
        ("optimizer.lr=0.5",),
        (row(1, val_loss=0.25, epoch_seconds=99.0),),
        data={"fingerprint": "2", "num_train": 5},
        git={"commit": "b" * 40, "dirty": True},
        versions={"torch": "2.11.0"},
        best=None,
    )
    (second / "source.patch").write_bytes(b"diff --git a/x b/x\n+1\ndiff --git a/y b/y\n")
    for folder, version in ((first, "1"), (second, "2")):
        (folder / "environment.txt").write_text(f"same==1\nnumpy=={version}\n")
    found = compare_runs(read_run(first), read_run(second))
    assert found["config"] == {"optimizer.lr": (0.01, 0.5)}
    assert set(found["code"]) == {"commit", "dirty", "source.patch"}
    assert found["code"]["source.patch"][1].startswith("2 changed files, SHA-256 ")
    assert found["data"] == {"fingerprint": ("1", "2")}
    assert found["environment"] == {"packages.numpy": ("1", "2"), "packages.torch": ("2.15.0", "2.11.0")}
    assert found["metrics"]["last epoch.val_loss"] == (1.1, 0.25)
    assert "last epoch.epoch_seconds" not in found["metrics"]
    assert compare_runs(read_run(first), read_run(first)) == {}


def test_facts_that_an_older_run_did_not_record_are_no_difference_of_data(tmp_path):
    old = make_run(tmp_path / "old")
    new = make_run(tmp_path / "new", data={"fingerprint": "1", "num_train": 5})
    assert compare_runs(read_run(old), read_run(new)) == {}
