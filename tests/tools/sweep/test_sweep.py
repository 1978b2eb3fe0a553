"""Which trials a sweep starts, and which not; a function stands for the training, through Hydra's own launcher."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import (
    ConfigError,
    InvalidDatasetError,
    LaunchError,
    MissingPackageError,
    OutputError,
    RunnerError,
    TrialsFailedError,
)
from runner.cli.commands.resume import run as resume
from runner.config.hydra_compose import ComposedJob
from runner.tools.sweep.sweep_folder import SweepFolder, Trial, TrialOutcome
from tests.composed import compose_jobs
from tests.conftest import ROOT

IN_PROCESS = ("-m", "hydra/launcher=basic", "data=synthetic", "sweep.dir=mine")


class Trainings:
    """Plays trials: the value is a function of the learning rate; notes which were trained."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, float]] = []
        self.failing: set[float] = set()

    def __call__(self, job: ComposedJob) -> float:
        assert job.folder is not None
        lr = job.config.optimizer.lr
        self.trained.append((job.folder.name, lr))
        if lr in self.failing:
            raise InvalidDatasetError("an image can't be read")
        row = {"epoch": 1, "val_top1": round(1 - abs(lr - 0.3), 6), "val_loss": lr, "epoch_seconds": 1.0}
        (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (job.folder / "run.json").write_text(json.dumps({"status": "completed", "attempts": 1}))
        return row["val_top1"]

    @property
    def rates(self) -> list[float]:
        return [lr for _, lr in self.trained]


@pytest.fixture
def trainings(tmp_path, monkeypatch) -> Trainings:
    monkeypatch.chdir(tmp_path)
    played = Trainings()
    monkeypatch.setattr("runner.cli.commands.resume.train_job_of_sweep", played)
    return played


def sweep(trainings: Trainings, *overrides: str) -> list[dict]:
    flags = [item for item in overrides if item.startswith("--")]
    typed = [item for item in overrides if item not in flags]
    compose_jobs([*flags, *IN_PROCESS, *typed], trainings)
    return leaderboard()


def leaderboard(folder: str = "mine") -> list[dict]:
    return json.loads((Path(folder) / "leaderboard.json").read_text())


def refused(trainings: Trainings, *overrides: str, kind: type[RunnerError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        sweep(trainings, *overrides)
    return str(caught.value)


def test_a_grid_is_ranked(trainings):
    rows = sweep(trainings, "optimizer.lr=0.1,0.2,0.4")
    assert trainings.trained == [("0", 0.1), ("1", 0.2), ("2", 0.4)]
    assert [(row["rank"], row["folder"], row["values"]) for row in rows] == [
        (1, "1", {"optimizer.lr": "0.2"}),
        (1, "2", {"optimizer.lr": "0.4"}),
        (3, "0", {"optimizer.lr": "0.1"}),
    ]


def test_typed_again_nothing_is_trained_and_more_values_only_add(trainings):
    sweep(trainings, "optimizer.lr=0.1,0.2")
    sweep(trainings, "optimizer.lr=0.1,0.2")
    rows = sweep(trainings, "optimizer.lr=0.4,0.2,0.1")
    assert trainings.trained == [("0", 0.1), ("1", 0.2), ("2", 0.4)]
    assert len(rows) == 3


def test_resume_runs_missing_trials_from_any_working_folder(trainings, tmp_path, monkeypatch):
    sweep(trainings, "optimizer.lr=0.1,0.2")
    (tmp_path / "mine" / "1" / "run.json").unlink()
    monkeypatch.chdir("/")
    assert resume([f"run={tmp_path}/mine"]) == 0
    assert trainings.trained == [("0", 0.1), ("1", 0.2), ("1", 0.2)]
    with pytest.raises(ConfigError, match=r"to resume a sweep, type sweep\.KEY=VALUE"):
        resume([f"run={tmp_path}/mine", "optimizer.lr=3"])


def test_a_failed_trial_ends_no_other_and_is_reported(trainings):
    trainings.failing = {0.1}
    told = refused(trainings, "optimizer.lr=0.1,0.2", kind=TrialsFailedError)
    assert "1 of 2 trials failed" in told and "0: InvalidDatasetError: an image can't be read" in told
    assert trainings.rates == [0.1, 0.2]
    assert [row["status"] for row in leaderboard()] == ["completed", "failed"]


def test_a_failed_trial_is_tried_again_only_when_asked(trainings):
    trainings.failing = {0.1}
    refused(trainings, "optimizer.lr=0.1,0.2", kind=TrialsFailedError)
    refused(trainings, "optimizer.lr=0.1,0.2", kind=TrialsFailedError)
    assert trainings.rates == [0.1, 0.2]
    refused(trainings, "optimizer.lr=0.1,0.2", "sweep.on_failure=retry", kind=TrialsFailedError)
    assert trainings.rates == [0.1, 0.2, 0.1]
    trainings.failing = set()
    rows = sweep(trainings, "optimizer.lr=0.1,0.2", "sweep.on_failure=retry", "sweep.max_retries=2")
    assert trainings.rates == [0.1, 0.2, 0.1, 0.1]
    assert [row["status"] for row in rows] == ["completed", "completed"]


def test_retries_end(trainings):
    trainings.failing = {0.1}
    retry = ("sweep.on_failure=retry", "sweep.max_retries=2")
    refused(trainings, "optimizer.lr=0.1", *retry, kind=TrialsFailedError)
    assert trainings.rates == [0.1] * 3


@pytest.mark.parametrize(
    ("policy", "trained"),
    [("sweep.on_failure=stop", [1, 2]), ("sweep.max_failures=1", [1, 2, 3, 4])],
)
def test_failures_may_end_a_search(trainings, policy, trained):
    trainings.failing = {2.0, 4.0}
    points = ", ".join(f"{{optimizer.lr: {number}}}" for number in range(1, 7))
    refused(
        trainings,
        "hydra/sweeper=random",
        "optimizer.lr=range(1,7)",
        "sweep.num_trials=6",
        "sweep.parallel=1",
        f"sweep.starting_points=[{points}]",
        policy,
        kind=TrialsFailedError,
    )
    assert trainings.rates == trained


def test_all_mistakes_of_all_trials_are_reported_before_any_is_trained(trainings, tmp_path):
    told = refused(trainings, "optimizer.lr=0.1,-1,-2", "model=resnet18,resnet51", "trainer.epchos=3")
    for mistake in ("optimizer.lr = -1", "optimizer.lr = -2", "did you mean resnet50?", "did you mean trainer.epochs?"):
        assert mistake in told
    assert trainings.trained == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("hydra/sweeper=random",), "a search needs keys that vary"),
        (("hydra/sweeper=tpe", "optimizer.lr=interval(-1,1)"), "optimizer.lr = -1: must be greater than 0"),
        (("hydra/sweeper=tpe", "optimizer.lr=0.1,0.2", "sweep.zip=[[a.b,c.d]]"), "pairs the values of a grid"),
        (("optimizer.lr=interval(0.1,1)",), "a grid needs a list of values"),
        (("optimizer.lr=0.1,0.2", "seed=1,2,3", "sweep.zip=[[optimizer.lr,seed]]"), "equally many values"),
        (("optimizer.lr=0.1,0.2", "sweep.pruner=bandit"), "needs either sweep.pruning.slack_factor"),
        (("optimizer.lr=0.1,0.2", "sweep.paralel=2"), "did you mean sweep.parallel?"),
        (("optimizer.lr=0.1,0.2", "optimizer.name=sgd"), "choose it with optimizer=sgd"),
        (("sweep.parallel=1,2",), "the same for all trials"),
        (
            ("hydra/sweeper=tpe", "optimizer.lr=0.1,0.2", "sweep.starting_points=[{seed: 1}]"),
            "does not vary in this sweep",
        ),
    ],
)
def test_a_refusal_leaves_nothing_behind(trainings, tmp_path, overrides, message):
    assert message in refused(trainings, *overrides)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "overrides", [("hydra/sweeper=random", "optimizer.lr=interval(0.1,1)"), ("sweep.pruner=median",)]
)
def test_a_missing_package_is_named_before_anything_is_made(trainings, tmp_path, monkeypatch, overrides):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "optuna" else there(name, *_))
    told = refused(trainings, *overrides, kind=MissingPackageError)
    assert "need Optuna" in told and 'pip install "optuna>=' in told
    assert list(tmp_path.iterdir()) == []


def test_a_grid_imports_no_optuna():
    code = "import runner.tools.sweep.begin, sys; print('optuna' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_two_sweeps_in_one_folder_are_refused(trainings, tmp_path):
    with SweepFolder(tmp_path / "mine").hold():
        assert "another process is working on this sweep" in refused(trainings, "optimizer.lr=0.1", kind=OutputError)
    sweep(trainings, "optimizer.lr=0.1")


def test_a_sweep_of_runs_on_several_machines_is_refused_with_the_way_that_works(trainings, tmp_path):
    overrides = ("optimizer.lr=0.1,0.2", "dist.nodes=2", "dist.rendezvous=node0:29400")
    message = refused(trainings, *overrides, kind=LaunchError)
    assert "dist.nodes = 2 machines" in message and "hydra/sweeper=basic hydra/launcher=basic" in message
    assert list(tmp_path.iterdir()) == []


def test_the_runs_of_others_are_not_touched(trainings, tmp_path):
    (tmp_path / "mine" / "0").mkdir(parents=True)
    assert "already holds runs" in refused(trainings, "optimizer.lr=0.1", kind=OutputError)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["0"]


def test_a_dry_run_shows_the_trials_and_starts_none(trainings, tmp_path, capsys):
    compose_jobs([*IN_PROCESS, "optimizer.lr=0.1,0.2", "seed=3,4", "sweep.dry_run=true"], trainings)
    assert capsys.readouterr().out.splitlines()[:2] == ["0  optimizer.lr=0.1 seed=3", "1  optimizer.lr=0.1 seed=4"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_dry_run_of_a_search_shows_its_first_proposals(trainings, capsys, sampler):
    search = (f"hydra/sweeper={sampler}", "optimizer.lr=tag(log,interval(0.001,1))", "sweep.num_trials=3")
    compose_jobs([*IN_PROCESS, *search, "sweep.dry_run=true"], trainings)
    shown = capsys.readouterr().out.splitlines()
    sweep(trainings, *search, "sweep.parallel=1")
    proposed = [line.partition("optimizer.lr=")[2] for line in shown if "optimizer.lr=" in line]
    assert proposed[0] == str(trainings.rates[0])
    if sampler == "random":
        assert proposed == [str(rate) for rate in trainings.rates]


def test_a_search_trains_as_many_as_asked_and_more_when_asked_for_more(trainings):
    search = ("hydra/sweeper=tpe", "optimizer.lr=interval(0.01,1)", "sweep.parallel=2")
    sweep(trainings, *search, "sweep.num_trials=4")
    first = list(trainings.rates)
    assert len(first) == 4
    sweep(trainings, *search, "sweep.num_trials=4")
    assert trainings.rates == first
    assert len(sweep(trainings, *search, "sweep.num_trials=6")) == 6
    assert trainings.rates[:4] == first


def test_a_repeated_proposal_is_not_trained_again(trainings):
    search = ("hydra/sweeper=random", "optimizer.lr=0.1,0.2,0.3", "sweep.num_trials=12")
    rows = sweep(trainings, *search)
    assert sorted(trainings.rates) == [0.1, 0.2, 0.3]
    assert len(rows) == 3
    assert len(SweepFolder(Path("mine")).trials()) == 12


def test_a_space_whose_bounds_break_a_rule_between_keys_is_refused(trainings):
    search = ("hydra/sweeper=random", "trainer.epochs=int(interval(2,4))", "schedule.warmup_epochs=range(1,4)")
    told = refused(trainings, *search, "sweep.num_trials=12", kind=ConfigError)
    assert "must be less than trainer.epochs" in told


def test_the_space_of_an_experiment_file(trainings, tmp_path):
    file = tmp_path / "my" / "experiment" / "search.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "# @package _global_\n"
        "sweep:\n  num_trials: 8\n  space:\n"
        "    optimizer: {kind: choice, values: [sgd, adamw]}\n"
        "    optimizer.lr: {kind: loguniform, low: 0.01, high: 1}\n"
        "    optimizer.momentum: {kind: normal, mu: 0.8, sigma: 0.02, when: {optimizer: sgd}}\n"
        "    data.batch_size: {kind: quniform, low: 8, high: 32, step: 8}\n"
    )
    rows = sweep(trainings, "--config-dir=my", "experiment=search", "hydra/sweeper=tpe")
    assert len(rows) == 8
    assert {("optimizer.momentum" in row["values"]) == (row["values"]["optimizer"] == "sgd") for row in rows} == {True}
    assert {row["values"]["data.batch_size"] for row in rows} <= {"8", "16", "24", "32"}


def test_experiments_may_be_swept(trainings, tmp_path):
    for name, rate in (("one", 0.1), ("two", 0.2)):
        file = tmp_path / "my" / "experiment" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\noptimizer: {{lr: {rate}}}\n")
    sweep(trainings, "--config-dir=my", "experiment=one,two")
    assert trainings.rates == [0.1, 0.2]


def test_several_metrics(trainings):
    rows = sweep(trainings, "optimizer.lr=0.1,0.3,0.9", "sweep.metric=[val_top1,val_loss]")
    assert [(row["rank"], row["values"]["optimizer.lr"]) for row in rows] == [(1, "0.3"), (1, "0.1"), (3, "0.9")]


def test_no_trial_starts_after_the_time_is_up(trainings):
    sweep(trainings, "optimizer.lr=0.1,0.2", "sweep.timeout_minutes=1e-9")
    assert trainings.trained == []


def test_hydras_own_sweeper_and_its_parameters_in_yaml(trainings):
    compose_jobs([*IN_PROCESS, "hydra/sweeper=basic", "optimizer.lr=0.1,0.2"], trainings)
    assert trainings.trained == [("0", 0.1), ("1", 0.2)]


def test_a_trial_that_is_over_is_read_once(trainings, monkeypatch):
    from runner.tools.sweep import run as sweep_run

    read: list[int] = []

    def outcome_of(trial: Trial, *given: Any) -> TrialOutcome:
        outcome = real(trial, *given)
        if outcome.is_over:
            read.append(trial.number)
        return outcome

    real = sweep_run.outcome_of
    monkeypatch.setattr(sweep_run, "outcome_of", outcome_of)
    rows = sweep(trainings, "optimizer.lr=0.1,0.2,0.3")
    assert [row["status"] for row in rows] == ["completed"] * 3
    assert read == [0, 1, 2]
