"""An experiment that comes from others is read: nothing that it says to Hydra is carried out."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.compose import compose_one
from tests.composed import compose_jobs, refused

HEADER = "# @package _global_\n"
# What each would do, if Hydra were to carry it out: {made} is a path that must not come into being.
FILES = {
    "callback runs a shell": (
        "hydra: {{callbacks: {{x: {{_target_: torch.utils.collect_env.run, command: touch {made}}}}}}}"
    ),
    "callback unpickles": "hydra: {{callbacks: {{x: {{_target_: joblib.load, filename: {made}}}}}}}",
    "callback of the library's": "hydra: {{callbacks: {{x: {{_target_: pathlib.Path.touch, self: {made}}}}}}}",
    "logging runs a factory": "hydra: {{job_logging: {{handlers: {{x: {{(): pathlib.Path.touch, self: {made}}}}}}}}}",
    "logging opens a file": (
        "hydra: {{job_logging: {{handlers: {{x: {{class: logging.FileHandler, filename: {made}}}}}}}}}"
    ),
    "Hydra's logging": "hydra: {{hydra_logging: {{formatters: {{x: {{(): pathlib.Path.touch, self: {made}}}}}}}}}",
    "run.dir": "hydra: {{run: {{dir: {made}}}}}",
    "output_subdir": "hydra: {{output_subdir: {made}}}",
    "sweep.subdir": "hydra: {{sweep: {{subdir: {made}}}}}",
    "job.chdir": "hydra: {{job: {{chdir: true}}}}",
    "environment": "hydra: {{job: {{env_set: {{GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: core.fsmonitor}}}}}}",
    "copied environment": "hydra: {{job: {{env_copy: [HOME]}}}}",
    "name": "hydra: {{job: {{name: 'a b; touch {made}'}}}}",
    "launcher": "hydra: {{launcher: {{_target_: hydra_plugins.mine.Launcher}}}}",
    "sweeper": "hydra: {{sweeper: {{_target_: pathlib.Path.touch, self: {made}}}}}",
    "sweeper's params": "hydra: {{sweeper: {{params: {{hydra.run.dir: {made}}}}}}}",
    "overrides": "hydra: {{overrides: {{hydra: ['hydra.run.dir={made}']}}}}",
    "verbose": "hydra: {{verbose: [root]}}",
    "package": "defaults:\n  - /optimizer@hydra.callbacks.x: adamw\n",
}
LAUNCHERS = {
    "submitit_slurm": [
        "setup: [touch {made}]",
        "additional_parameters: {{wrap: 'touch {made}'}}",
        "partition: 'a\\nb'",
    ],
    "submitit_local": ["submitit_folder: {made}", "name: 'a; b'"],
    "joblib": ["temp_folder: {made}", "pre_dispatch: 'print(1)'", "backend: mine"],
}


@pytest.mark.parametrize("name", FILES)
def test_an_experiment_that_says_more_to_hydra_is_refused_by_name(experiment, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = refused(*experiment(FILES[name]))
    assert "hydra" in message
    assert "can't be set" in message or "none of the runner's" in message
    assert [path.name for path in tmp_path.iterdir()] == ["my"]


@pytest.mark.parametrize("multirun", [["-m", "hydra/launcher=basic"], ["-m", "hydra/sweeper=basic"]])
@pytest.mark.parametrize("name", ["callback runs a shell", "logging runs a factory", "sweep.subdir", "environment"])
def test_a_sweep_of_it_is_refused_too(experiment, tmp_path, monkeypatch, name, multirun):
    monkeypatch.chdir(tmp_path)
    assert "can't be set" in refused(*experiment(FILES[name]), *multirun, "sweep.dir=swept")
    assert [path.name for path in tmp_path.iterdir()] == ["my"]


@pytest.mark.parametrize(("launcher", "option"), [(key, option) for key in LAUNCHERS for option in LAUNCHERS[key]])
def test_launchers_take_plain_options_only(experiment, launcher, option):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    text = f"defaults:\n  - override /hydra/launcher: {launcher}\nhydra:\n  launcher:\n    {option}\n"
    assert f"hydra.launcher.{option.partition(':')[0]}" in refused(*experiment(text), "-m")


@pytest.mark.parametrize("name", ["callback runs a shell", "run.dir", "environment"])
def test_one_of_several_swept_experiments_is_refused_before_any_runs(experiment, tmp_path, name):
    folder = experiment(FILES[name])[:2]
    told = refused(*folder, "-m", "hydra/sweeper=basic", "hydra/launcher=basic", "experiment=digits,mine")
    assert "can't be set" in told
    told = refused(*folder, "-m", "hydra/launcher=basic", "experiment=digits,mine", f"sweep.dir={tmp_path / 'swept'}")
    assert "can't be set" in told


@pytest.mark.parametrize(
    "override",
    [
        "hydra.run={dir:made}",
        "hydra={run:{dir:made}}",
        "+hydra.callbacks.x._target_=os.getcwd",
        "++hydra.callbacks={x:{_target_:os.getcwd}}",
        "hydra.job.env_set={GIT_DIR:x}",
        "hydra/job_logging=default",
        "hydra/hydra_logging=default",
        "~hydra.callbacks",
        "~hydra",
        "hydra.output_subdir=x",
    ],
)
def test_the_command_line_says_no_more_to_hydra(override, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hydra" in refused(override)
    assert "hydra" in refused("-m", override)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "override",
    [
        "experiment=../../evil",
        "model=../x",
        "data=/etc/passwd",
        "hydra/launcher=../x",
        "+experiment=../x",
        "experiment=[digits,../x]",
    ],
)
def test_the_name_of_an_option_must_not_lead_out_of_its_group(override, tmp_path):
    assert "must be the name of an option" in refused(override)
    assert "must be the name of an option" in refused("-m", override)


def test_a_cycle_of_defaults_lists_is_refused_after_a_time_limit(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.config.hydra_compose._MAX_CPU_SECONDS", 1)
    argv = experiment("defaults:\n  - /experiment/e1@a\n  - /experiment/e1@b\n")
    for number in range(1, 25):
        entries = "".join(f"  - /experiment/e{number + 1}@{package}\n" for package in "ab")
        (tmp_path / "my" / "experiment" / f"e{number}.yaml").write_text(f"defaults:\n{entries}")
    (tmp_path / "my" / "experiment" / "e25.yaml").write_text("x: 1\n")
    assert "composing takes more than" in refused(*argv)


def test_compose_one_ignores_hydra_mode_of_an_experiment(experiment):
    job = compose_one(experiment("hydra: {{mode: MULTIRUN}}\nseed: 7\n"))
    assert job is not None and job.config.seed == 7


def test_settings_that_sweeps_need_are_allowed(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        "hydra: {{sweep: {{dir: '${{oc.env:PLACE}}/x'}}, sweeper: {{params: {{seed: '1,2'}}}}, job: {{name: mine}}}}\n"
    )
    monkeypatch.setenv("PLACE", str(tmp_path / "swept"))
    seeds: list[int] = []
    argv = [*experiment(text), "-m", "hydra/sweeper=basic", "hydra/launcher=basic"]
    compose_jobs(argv, lambda job: seeds.append(job.config.seed))
    assert seeds == [1, 2]
    assert sorted(path.name for path in (tmp_path / "swept" / "x").iterdir()) == ["0", "1", "multirun.yaml"]


def test_the_primary_config_says_nothing_to_hydra_that_is_refused():
    job = compose_one([])
    assert job is not None and job.folder is None
    assert Path.cwd().is_dir()
