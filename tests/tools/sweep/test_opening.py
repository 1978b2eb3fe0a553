"""Which folders a sweep takes up: new ones, and those of the same experiment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError, OutputError, RunnerError, TrialsFailedError
from runner.cli.commands.resume import run as resume
from runner.config.hydra_compose import ComposedJob
from runner.tools.sweep.sweep_folder import SweepFolder
from tests.composed import compose_jobs

BEGUN = ("optimizer.lr=0.1,0.2", "trainer.epochs=3")


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Carries out a sweep in the folder `mine`, whose trials are played; returns the rates that were trained."""
    monkeypatch.chdir(tmp_path)
    trained: list[float] = []

    def play(job: ComposedJob) -> float:
        assert job.folder is not None
        trained.append(job.config.optimizer.lr)
        row = {"epoch": 1, "val_top1": job.config.optimizer.lr, "val_loss": 1.0, "epoch_seconds": 1.0}
        (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (job.folder / "run.json").write_text(json.dumps({"status": "completed", "attempts": 1}))
        return 1.0

    def run_sweep(*overrides: str) -> list[float]:
        trained.clear()
        compose_jobs(["-m", "hydra/launcher=basic", "data=synthetic", "sweep.dir=mine", *overrides], play)
        return list(trained)

    monkeypatch.setattr("runner.cli.commands.resume.train_job_of_sweep", play)
    return run_sweep


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("optimizer.lr=0.1,0.2", "trainer.epochs=5"), r"\(optimizer.lr=0.1\) would change in trainer.epochs 3 → 5;"),
        (("seed=1,2", "trainer.epochs=4"), "trainer.epochs 3 → 4"),
        ((*BEGUN, "model=resnet34"), "model.name resnet18 → resnet34"),
        (("hydra/sweeper=random", "optimizer.lr=interval(0.1,1)", "trainer.epochs=4"), "trainer.epochs 3 → 4"),
        ((*BEGUN, "optimizer=adamw", "schedule=cosine", "data.image_size=64"), "and [0-9]+ more; choose another sweep"),
    ],
)
def test_the_folder_of_another_experiment_is_refused_and_not_changed(sweep, tmp_path, overrides, told):
    assert sweep(*BEGUN) == [0.1, 0.2]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"}
    with pytest.raises(OutputError, match=told):
        sweep(*overrides)
    assert {path: path.read_bytes() for path in before} == before
    assert resume([f"run={tmp_path}/mine"]) == 0


@pytest.mark.parametrize(
    ("overrides", "trained"),
    [
        (("trainer.epochs=3", "optimizer.lr=0.3,0.2"), [0.3]),
        ((*BEGUN, "seed=1,2"), [0.1, 0.2]),
        (("trainer.epochs=3", "optimizer.lr=0.1", "model=resnet18,resnet34"), [0.1]),
        ((*BEGUN, "data.workers=3", "sweep.parallel=1", "sweep.metric=val_loss"), []),
    ],
)
def test_more_values_and_more_keys_may_be_added(sweep, overrides, trained):
    sweep(*BEGUN)
    assert sweep(*overrides) == trained


def test_a_group_may_be_fixed_after_it_has_varied(sweep):
    sweep("model=resnet18,resnet34", "optimizer.lr=0.1")
    assert sweep("model=resnet34", "optimizer.lr=0.1,0.2") == [0.2]


def test_values_that_do_not_fit_what_is_typed_are_of_another_experiment(sweep):
    sweep("optimizer.momentum=0.5,0.6")
    with pytest.raises(OutputError, match=r"trial 0 does not fit what was typed: optimizer\.momentum"):
        sweep("optimizer=adamw", "optimizer.lr=0.1,0.2")


@pytest.mark.parametrize("name", ["leaderboard.csv", "best.yaml"])
def test_nothing_of_the_user_is_overwritten(sweep, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("of the user\n")
    with pytest.raises(OutputError, match=f"is no folder of a sweep, but has {name}"):
        sweep(*BEGUN)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == "of the user\n"


def test_the_loser_of_two_that_begin_at_once_leaves_the_folder_to_the_other(sweep, tmp_path, monkeypatch):
    """The other one makes the folder after this one has looked and found none."""
    with SweepFolder(tmp_path / "mine").hold():
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: path.name != "mine" and exists(path))
        with pytest.raises(OutputError, match="another process is working on this sweep"):
            sweep(*BEGUN)
        monkeypatch.undo()
        assert (tmp_path / "mine" / ".lock").is_file()


@pytest.mark.parametrize("place", ["a_file/mine", "/proc/mine"])
def test_a_place_that_can_not_be_written_is_named_by_its_key(sweep, tmp_path, place):
    (tmp_path / "a_file").touch()
    with pytest.raises(OutputError, match=r"choose another with sweep\.dir=FOLDER"):
        sweep(*BEGUN, f"sweep.dir={place}")


def test_combinations_that_are_the_same_are_trained_once(sweep):
    assert sweep("optimizer.lr=0.1,1e-1,0.2,0.1", "model=resnet18,resnet18") == [0.1, 0.2]


@pytest.mark.parametrize(
    "typed",
    [
        "dist=slurm",
        "++dist.slurm.setup=[touch made]",
        "dist.rendezvous=host.example.org:29500",
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=x",
        "sweep.storage=postgresql://host/db",
        "--config-dir=.",
    ],
)
def test_a_received_command_reaches_nothing_that_is_not_typed_again(tmp_path, typed):
    (tmp_path / "theirs").mkdir()
    record = {"format": 1, "argv": ["-m", typed, "optimizer.lr=0.1,0.2"], "cwd": str(tmp_path)}
    record |= {"start": "2026-11-22T00:00:00+00:00", "metrics": ["val_top1"], "directions": ["maximize"]}
    (tmp_path / "theirs" / "sweep.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="typed again") as caught:
        resume([f"run={tmp_path / 'theirs'}"])
    assert typed.lstrip("+").split()[0].removesuffix(".") in str(caught.value)
    assert {path.name for path in tmp_path.rglob("*")} == {"theirs", "sweep.json"}


@pytest.mark.parametrize("flag", ["--experimental-rerun=x.pickle", "--config-path=/x", "--cfg"])
def test_a_received_command_has_no_other_flags(tmp_path, flag):
    record = {"format": 1, "argv": ["-m", flag, "job"], "cwd": str(tmp_path), "metrics": [], "directions": []}
    record |= {"start": "2026-11-22T00:00:00+00:00"}
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    with pytest.raises(RunnerError):
        resume([f"run={tmp_path}"])


@pytest.mark.parametrize("cwd", ["", ".", "nosuch", "/nosuch"])
def test_a_received_command_is_carried_out_in_a_folder_that_is_there(tmp_path, cwd):
    record = {"format": 1, "argv": ["-m", "optimizer.lr=0.1,0.2"], "cwd": cwd}
    record |= {"start": "2026-11-22T00:00:00+00:00", "metrics": ["val_top1"], "directions": ["maximize"]}
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    with pytest.raises(OutputError, match=f"was started in '{cwd}', which is no folder here"):
        resume([f"run={tmp_path}"])


SUBMITS = (
    "hydra.sweeper.params={dist: slurm, dist.slurm.setup: '[touch made]', optimizer.lr: '0.1,0.2'}",
    "sweep.space={dist: {kind: choice, values: [slurm]}, optimizer.lr: {kind: choice, values: [0.1, 0.2]}}",
    "hydra.sweeper={params: {dist: slurm, optimizer.lr: '0.1,0.2'}}",
    "hydra={sweeper: {params: {dist: slurm, optimizer.lr: '0.1,0.2'}}}",
)


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Makes a sweep folder as somebody else may have written it, and goes on with it; nothing is trained or asked."""
    monkeypatch.chdir(tmp_path)
    trained: list[ComposedJob] = []

    def play(job: ComposedJob) -> float:
        trained.append(job)
        raise RuntimeError("it trains nothing here")

    def go_on(*argv: str, typed: Sequence[str] = ()) -> list[ComposedJob]:
        trained.clear()
        shutil.rmtree(tmp_path / "theirs", ignore_errors=True)
        (tmp_path / "theirs" / "trials").mkdir(parents=True)
        record = {"format": 1, "argv": ["-m", "hydra/launcher=basic", *argv], "cwd": str(tmp_path)}
        record |= {"start": "2026-11-22T00:00:00+00:00", "metrics": ["val_top1"], "directions": ["maximize"]}
        (tmp_path / "theirs" / "sweep.json").write_text(json.dumps(record))
        with pytest.raises(TrialsFailedError, match="it trains nothing"):
            resume([f"run={tmp_path / 'theirs'}", *typed])
        return list(trained)

    monkeypatch.setattr("runner.cli.commands.resume.train_job_of_sweep", play)
    return go_on


@pytest.mark.parametrize("sweeper", ["grid", "random"])
@pytest.mark.parametrize("carrier", SUBMITS)
def test_settings_that_carry_overrides_reach_nothing_that_is_not_typed_again(theirs, tmp_path, carrier, sweeper):
    with pytest.raises(ConfigError, match="typed again"):
        theirs("data=synthetic", "sweep.num_trials=2", f"hydra/sweeper={sweeper}", carrier)
    assert {path.name for path in tmp_path.rglob("*")} == {"theirs", "trials", "sweep.json"}


@pytest.mark.parametrize("launcher", ["trials", "basic"])
def test_neither_do_those_of_hydras_own_sweeper(theirs, launcher):
    carriers = ("hydra/sweeper=basic", "++hydra.sweeper={params: {dist: slurm, optimizer.lr: '0.1,0.2'}}")
    with pytest.raises(ConfigError, match="would submit a job to SLURM, which it does only where that is typed again"):
        theirs("data=synthetic", f"hydra/launcher={launcher}", *carriers)


def test_a_group_that_is_typed_again_brings_no_values_of_the_folder(theirs):
    command, setup = ("data=synthetic", SUBMITS[0]), "dist.slurm.setup=[touch made]"
    with pytest.raises(ConfigError, match=r"dist\.slurm\.setup.*would submit a job") as caught:
        theirs(*command, typed=["dist=slurm"])
    assert """dist=slurm 'dist.slurm.setup=["touch made"]'""" in str(caught.value)
    jobs = theirs(*command, typed=["dist=slurm", setup])
    assert [job.config.dist.slurm.setup for job in jobs] == [("touch made",)] * 2
    assert [job.config.dist.launcher for job in theirs(*command, typed=["dist=default"])] == ["auto"] * 2


def test_trials_of_a_received_command_write_and_download_nothing(theirs, tmp_path):
    command = ("model.weights=DEFAULT", "hydra.sweep={dir: made}", "optimizer.lr=0.1,0.2")
    jobs = theirs("data=synthetic", *command)
    assert [job.may_download for job in jobs] == [False] * 2
    assert {job.folder.parent for job in jobs if job.folder} == {tmp_path / "theirs"}
    jobs = theirs("data=synthetic", *command, typed=["model.weights=DEFAULT"])
    assert [job.may_download for job in jobs] == [True] * 2
    with pytest.raises(InvalidDatasetError, match=r"type data\.download=true"):
        theirs("data=torchvision", f"data.root={tmp_path}/none", "hydra/launcher=trials", *command)
    assert not (tmp_path / "made").exists() and not (tmp_path / "none").exists()


@pytest.mark.parametrize("option", ["nosuch", "../x"])
def test_an_option_that_is_typed_again_is_one(theirs, option):
    with pytest.raises(ConfigError, match="dist"):
        theirs("data=synthetic", "optimizer.lr=0.1,0.2", typed=[f"dist={option}"])
