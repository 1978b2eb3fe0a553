from __future__ import annotations

import csv
import json

import pytest
import yaml

from runner.library import load_config
from runner.tools.hooks import leaderboard_refreshed
from runner.tools.sweep.composer import trial_identity
from runner.tools.sweep.leaderboard import command_of, read_leaderboard, write_leaderboard
from runner.tools.sweep.sweep_folder import outcome_of


def ranks(board) -> list[tuple[int, int | None]]:
    return [(place.outcome.trial.number, place.rank) for place in board.rows]


def test_the_best_comes_first_and_unfinished_trials_have_no_rank(folder, add_trial):
    trials = [
        add_trial({"seed": "1"}, [0.5, 0.7]),
        add_trial({"seed": "2"}, [0.9, 0.8]),
        add_trial({"seed": "3"}, [0.7], "pruned"),
        add_trial({"seed": "4"}, [0.99], "failed"),
        add_trial({"seed": "5"}, [], None),
        add_trial({"seed": "6"}, [0.95], "stopped"),
    ]
    board = read_leaderboard(folder, trials, ("val_top1",), ("maximize",))
    assert ranks(board) == [(1, 1), (0, 2), (2, 2), (3, None), (4, None), (5, None)]
    statuses = [place.outcome.status for place in board.rows]
    assert statuses == ["completed", "completed", "pruned", "failed", "waiting", "stopped"]
    assert board.best is not None and board.best.trial.number == 1


def test_with_several_metrics_the_front_is_first(folder, add_trial):
    trials = [add_trial({"seed": str(number)}, [value]) for number, value in enumerate((0.5, 0.9, 0.7))]
    board = read_leaderboard(folder, trials, ("val_top1", "val_loss"), ("maximize", "maximize"))
    assert [rank for _, rank in ranks(board)] == [1, 1, 1]  # what one gains the other loses
    board = read_leaderboard(folder, trials, ("val_top1", "val_loss"), ("maximize", "minimize"))
    assert ranks(board) == [(1, 1), (2, 2), (0, 3)]


def test_a_spreadsheet_runs_nothing_of_the_leaderboard(folder, add_trial):
    trials = [
        add_trial({"model.weights": "=cmd()", "optimizer.lr": "-0.5", "@key": "+1+1"}, [0.5]),
        add_trial({"model.weights": "a"}, [], "failed"),
    ]
    write_leaderboard(folder, read_leaderboard(folder, trials, ("val_top1",), ("maximize",)))
    with (folder.path / "leaderboard.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["model.weights"], row["optimizer.lr"], row["'@key"]) == ("'=cmd()", "-0.5", "'+1+1")
    exact = json.loads((folder.path / "leaderboard.json").read_text())[0]["values"]
    assert exact == {"model.weights": "=cmd()", "optimizer.lr": "-0.5", "@key": "+1+1"}


def test_a_minimised_metric(folder, add_trial):
    trials = [add_trial({"seed": str(number)}, [value, 0.1]) for number, value in enumerate((0.5, 0.9))]
    board = read_leaderboard(folder, trials, ("val_loss",), ("minimize",))
    assert ranks(board) == [(1, 1), (0, 2)]
    assert board.best is not None and board.best.values is not None
    assert abs(board.best.values[0] - 0.1) < 1e-9


def test_a_run_that_died_with_its_sweep_is_unfinished_and_one_that_died_alone_has_failed(folder, add_trial):
    cut = add_trial({"seed": "1"}, [0.5], "running")
    died = add_trial({"seed": "2"}, [0.5], "running", failures=[{"name": "TrialCrashed", "message": "SIGKILL"}])
    statuses = [outcome_of(trial, folder, ("val_top1",), ("maximize",)).status for trial in (cut, died)]
    assert statuses == ["stopped", "failed"]


def test_the_average_of_the_weights_counts_where_it_is_better(folder, add_trial):
    trial = add_trial({"seed": "1"}, [0.5])
    row = {"epoch": 1, "val_top1": 0.5, "val_ema_top1": 0.75, "epoch_seconds": 1.0}
    (folder.run_dir(trial) / "metrics.jsonl").write_text(json.dumps(row) + '\n{"epoch": 2, "val_')
    outcome = outcome_of(trial, folder, ("val_top1",), ("maximize",))
    assert (outcome.values, outcome.num_epochs) == ((0.75,), 1)


def test_the_leaderboard_files(folder, add_trial):
    trials = [
        add_trial({"optimizer.lr": "0.1", "seed": "1"}, [0.5]),
        add_trial({"optimizer.lr": "0.2"}, [], "failed"),
        add_trial({"optimizer.lr": "0.3"}, [0.5], same_as=0),
    ]
    write_leaderboard(folder, read_leaderboard(folder, trials, ("val_top1",), ("maximize",)))
    with (folder.path / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "rank",
        "val_top1",
        "optimizer.lr",
        "seed",
        "seconds",
        "epochs",
        "status",
        "folder",
        "error",
    ]
    assert [(row["rank"], row["val_top1"], row["seed"], row["status"]) for row in rows] == [
        ("1", "0.5", "1", "completed"),
        ("", "", "", "failed"),
    ]
    assert rows[1]["error"] == "DeviceError: out of memory"
    parsed = json.loads((folder.path / "leaderboard.json").read_text())
    assert parsed[0]["values"] == {"optimizer.lr": "0.1", "seed": "1"}
    assert parsed[0]["folder"] == "0"


@pytest.mark.parametrize(
    "typed",
    [
        ("data=synthetic", "data.image_size=64", "model=resnet34", "optimizer=adamw", "optimizer.lr=0.003", "seed=4"),
        ("data=folder", "data.root=photos", "model=torchvision", "model.name=efficientnet_b0", "schedule=cosine"),
        ("data=torchvision", "data.name=CIFAR10", "model=custom", "model.name=mine"),
        ("experiment=transfer", "data.root=photos"),
    ],
)
def test_best_yaml_trains_the_winner_again(folder, add_trial, tmp_path, typed):
    config = load_config([*typed, "sweep.parallel=3", "output_dir=elsewhere"])
    trial = add_trial({"optimizer.lr": "0.003"}, [0.5])
    trial.config = config.model_dump(mode="json")
    write_leaderboard(folder, read_leaderboard(folder, [trial], ("val_top1",), ("maximize",)))
    text = (folder.path / "best.yaml").read_text()
    assert text.startswith("# @package _global_\n")
    assert {"output_dir", "sweep"}.isdisjoint(yaml.safe_load(text))
    experiment = tmp_path / "my" / "experiment" / "winner.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text(text)
    again = load_config(["--config-dir", str(tmp_path / "my"), "experiment=winner"])
    assert trial_identity(again.model_dump(mode="json")) == trial_identity(trial.config)


def test_best_yaml_has_the_varied_keys_even_where_the_default_won(folder, add_trial):
    default = load_config([]).optimizer.lr
    trial = add_trial({"optimizer.lr": str(default), "model": "resnet18"}, [0.5])
    trial.config = load_config([]).model_dump(mode="json")
    write_leaderboard(folder, read_leaderboard(folder, [trial], ("val_top1",), ("maximize",)))
    experiment = yaml.safe_load((folder.path / "best.yaml").read_text())
    assert experiment["optimizer"] == {"lr": default}
    assert {"override /model": "resnet18"} in experiment["defaults"]
    assert "model" not in experiment


def test_the_command_of_a_trial_is_quoted_for_a_shell(add_trial):
    trial = add_trial({"data.root": "a b"})
    assert command_of(trial) == "python -m runner 'data.root=a b'"


def test_a_job_that_has_ended_writes_the_leaderboard_anew(folder, add_trial):
    first = add_trial({"seed": "1"}, [0.5])
    add_trial({"seed": "2"}, [], None, job_id="7")
    with pytest.raises(ZeroDivisionError), leaderboard_refreshed(folder.run_dir(first)):
        raise ZeroDivisionError
    rows = json.loads((folder.path / "leaderboard.json").read_text())
    assert [(row["folder"], row["status"]) for row in rows] == [("0", "completed"), ("1", "submitted")]


def test_a_run_that_is_no_trial_writes_no_leaderboard(tmp_path):
    with leaderboard_refreshed(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_leaderboard_that_can_not_be_written_harms_no_run(folder, add_trial, caplog):
    run_dir = folder.run_dir(add_trial({"seed": "1"}, [0.5]))
    (folder.path / "trials" / "0.json").write_text("{}")
    with caplog.at_level("WARNING", logger="runner"), leaderboard_refreshed(run_dir):
        pass
    assert "the leaderboard can't be written" in caplog.text and "0.json is damaged" in caplog.text
