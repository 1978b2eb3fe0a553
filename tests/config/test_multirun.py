"""Sweeps that Hydra's own sweeper runs: one job per combination, each in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import ConfigError
from runner.config.hydra_compose import ComposedJob
from tests.composed import compose_jobs, refusal, refused

# Our own sweeper and launcher start processes (tests/sweep); Hydra's own call the job here.
BASIC = ("-m", "hydra/sweeper=basic", "hydra/launcher=basic")


SWEEP = (*BASIC, "model=resnet18,resnet34", "optimizer.lr=0.01,0.1")


def test_an_error_of_the_job_comes_through_as_it_is():
    def fail(job: ComposedJob) -> None:
        raise ValueError("Config group override is what this message begins with")

    with pytest.raises(ValueError, match="Config group override is what"):
        compose_jobs([], fail)


def test_a_multirun_runs_each_combination_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs: list[ComposedJob] = []

    def run_job(job: ComposedJob) -> float:
        assert job.folder is not None
        assert job.folder.is_dir()
        jobs.append(job)
        return 0.5

    compose_jobs([*SWEEP, f"hydra.sweep.dir={tmp_path / 'sweep'}"], run_job)
    assert [job.overrides for job in jobs] == [
        ("model=resnet18", "optimizer.lr=0.01"),
        ("model=resnet18", "optimizer.lr=0.1"),
        ("model=resnet34", "optimizer.lr=0.01"),
        ("model=resnet34", "optimizer.lr=0.1"),
    ]
    assert [(job.config.model.name, job.config.optimizer.lr) for job in jobs] == [
        ("resnet18", 0.01),
        ("resnet18", 0.1),
        ("resnet34", 0.01),
        ("resnet34", 0.1),
    ]
    assert [job.folder for job in jobs] == [tmp_path / "sweep" / str(number) for number in range(4)]


def test_a_multirun_goes_into_a_new_folder_under_the_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []
    for _ in range(2):
        compose_jobs([*BASIC, "seed=1,2", "output_dir=out"], lambda job: folders.append(job.folder))
    sweeps = tmp_path / "out" / "sweeps"
    assert [folder.name for folder in folders] == ["0", "1", "0", "1"]
    assert {folder.parents[2] for folder in folders} == {sweeps}
    assert len({folder.parent for folder in folders}) == 2


def test_a_multirun_goes_where_sweep_dir_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []
    compose_jobs([*BASIC, "seed=1,2", "sweep.dir=mine"], lambda job: folders.append(job.folder))
    assert folders == [tmp_path / "mine" / "0", tmp_path / "mine" / "1"]


def test_a_refused_job_ends_no_multirun_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run: list[int] = []
    with pytest.raises(ConfigError, match=r"trainer\.epochs = -2: must be at least 1"):
        compose_jobs(
            [*BASIC, "trainer.epochs=1,-2,3", "sweep.dir=mine"],
            lambda job: run.append(job.config.trainer.epochs),
        )
    assert run == [1, 3]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir() if path.is_dir()) == ["0", "2"]


def test_an_unknown_option_in_a_sweep_is_refused_before_its_first_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refusal(*BASIC, "model=resnet18,resnet51", "output_dir=out")
    assert "did you mean resnet50?" in str(error)
    assert [path for path in tmp_path.rglob("*") if path.name.isdigit()] == []  # the folders of jobs


def test_a_sweep_varies_none_of_hydras_own_settings():
    assert "Hydra's own settings can't be swept" in refused("-m", "hydra.sweep.dir=a,b")
