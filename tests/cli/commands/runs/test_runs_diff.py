import json

import pytest

from runner.base.errors import CheckpointError, ConfigError
from runner.cli.commands.runs.diff import run
from tests.made_runs import make_run


def test_tables_and_json(tmp_path, capsys):
    a = make_run(tmp_path / "a")
    b = make_run(tmp_path / "b", ("trainer.epochs=9",))
    assert run([f"a={a}", f"b={b}"]) == 0
    out = capsys.readouterr().out
    assert "trainer.epochs  5  9" in out
    assert "environment" not in out
    run([f"a={a}", f"b={b}", "format=json"])
    assert json.loads(capsys.readouterr().out) == {"a": str(a), "b": str(b), "config": {"trainer.epochs": [5, 9]}}
    run([f"a={a}", f"b={a}"])
    assert "nothing differs" in capsys.readouterr().out


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"a={tmp_path}", f"b={tmp_path}"])
    with pytest.raises(ConfigError, match="needs a value"):
        run([f"a={tmp_path}"])


def test_numbers_are_brief_unless_that_would_hide_their_difference(tmp_path, capsys):
    numbers = (1 / 3, 1 / 3 + 1e-9, 2 / 3)
    runs = [
        make_run(tmp_path / name, best={"metric": "val_top1", "value": value, "epoch": 1})
        for name, value in zip("abc", numbers, strict=True)
    ]
    run([f"a={runs[0]}", f"b={runs[2]}"])
    assert "best.value  0.333333  0.666667" in capsys.readouterr().out
    run([f"a={runs[0]}", f"b={runs[1]}"])
    assert "best.value  0.3333333333333333  0.3333333343333333" in capsys.readouterr().out


def test_the_tables_fit_the_terminal_and_the_metrics_stand_beside_the_keys(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    best = {"metric": "val_top1", "value": 0.5, "epoch": 1}
    long = "/a/" + "very/long/" * 20
    a = make_run(tmp_path / "a", (f"output_dir={long}one/{'x' * 60}",), best=best)
    b = make_run(tmp_path / "b", (f"output_dir={long}two/{'x' * 60}", "trainer.epochs=9"), best=best | {"value": 0.75})
    run([f"a={a}", f"b={b}"])
    head, config, metrics, *_ = capsys.readouterr().out.split("\n\n")
    assert "val_top1 50.00% at epoch 1" in head
    assert "val_top1 75.00% at epoch 1" in head
    assert metrics.startswith("metrics")
    assert "best.value" in metrics
    assert max(map(len, config.splitlines())) <= 80
    key, old, new = next(line for line in config.splitlines() if "output_dir" in line).split()
    assert key == "output_dir"
    assert old != new
    assert "one/" in old
    assert "two/" in new
