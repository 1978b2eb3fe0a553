"""conf/experiment/ants.yaml in the working folder: `experiment=ants` just works, wherever an experiment is chosen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runner
from runner.base.errors import ConfigError
from runner.cli.commands.resume import run as resume
from runner.config import CONF_DIR
from runner.config.arguments import read_command_line
from tests.composed import compose_jobs, refused
from tests.conftest import ROOT

ANTS = "# @package _global_\ndefaults: [override /data: synthetic]\nseed: 77\ndata: {num_classes: 3, num_train: 30}\n"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A working folder with an experiment; returns its folder of experiments."""
    folder = tmp_path / "pro ject" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "ants.yaml").write_text(ANTS)
    monkeypatch.chdir(folder.parents[1])
    return folder


def seeds(*argv: str) -> list[int]:
    found: list[int] = []
    compose_jobs(argv, lambda job: found.append(job.config.seed))
    return found


@pytest.mark.parametrize("chosen", ["experiment=ants", "experiment=[ants]", "+experiment=ants"])
def test_an_experiment_of_the_working_folder_is_found(project, chosen):
    assert runner.load_config([chosen]).seed == 77
    assert seeds(chosen) == [77]


@pytest.mark.parametrize("sweeper", ["grid", "basic"])
def test_it_is_found_in_sweeps_and_by_a_pattern(project, sweeper):
    (project / "bees.yaml").write_text(ANTS.replace("77", "78"))
    argv = ("-m", "hydra/launcher=basic", f"hydra/sweeper={sweeper}", "sweep.dir=../sweep")
    for chosen in ("experiment=ants,bees", "experiment=glob([ants,bee*])"):
        shutil.rmtree("../sweep", ignore_errors=True)
        found: list[int] = []

        def train(job, found=found):
            found.append(job.config.seed)
            (job.folder / "run.json").write_text(json.dumps({"status": "completed", "attempts": 1}))
            row = {"epoch": 1, "val_top1": 0.5, "val_loss": 1.0, "epoch_seconds": 1.0}
            (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            return 1.0

        compose_jobs([*argv, chosen], train)
        assert found == [77, 78]


def test_other_groups_of_that_folder_are_looked_in_as_with_config_dir(project):
    (project.parent / "optimizer").mkdir()
    (project.parent / "optimizer" / "mine.yaml").write_text("defaults: [sgd]\nlr: 0.125\n")
    assert runner.load_config(["experiment=ants", "optimizer=mine"]).optimizer.lr == 0.125


def test_messages_list_it(project):
    for chosen in ("experiment=antz", "experiment=[digits,antz]"):
        message = refused(chosen)
        assert "transfer; did you mean ants?" in message
    assert "there are ants, " in refused("-m", "experiment=antz,ants", "seed=1,2", "sweep.dry_run=true")


def test_a_name_that_both_have_is_ambiguous_whoever_chooses_it(project):
    (project / "digits.yaml").write_text("# @package _global_\nseed: 5\n")
    (project / "on_top.yaml").write_text("# @package _global_\ndefaults: [digits]\n")
    both = (str(CONF_DIR / "experiment" / "digits.yaml"), str(project / "digits.yaml"))
    chosen = ("experiment=digits", "experiment=[ants,digits]", "experiment=on_top")
    for argv in (*((item,) for item in chosen), ("-m", "experiment=ants,digits", "sweep.dry_run=true")):
        message = refused(*argv)
        assert "'digits': is ambiguous" in message
        assert all(file in message for file in both)
    assert seeds("experiment=ants") == [77], "nobody chose digits"


def test_so_is_one_of_the_working_folder_and_of_a_typed_folder(project, tmp_path):
    (tmp_path / "other" / "experiment").mkdir(parents=True)
    (tmp_path / "other" / "experiment" / "ants.yaml").write_text(ANTS.replace("77", "78"))
    assert "is ambiguous" in refused("--config-dir", str(tmp_path / "other"), "experiment=ants")
    assert seeds("--config-dir", "conf", "experiment=ants") == [77], "the same folder twice"


def test_an_option_of_another_group_is_ambiguous_once_it_is_chosen_by_anybody_but_the_runner(project):
    (project.parent / "model").mkdir()
    for name in ("resnet18", "resnet34"):
        (project.parent / "model" / f"{name}.yaml").write_text("x: 1\n")
    (project / "bees.yaml").write_text(ANTS.replace("defaults: [", "defaults: [override /model: resnet34, "))
    for argv in (["model=resnet18"], ["model=resnet34"], ["experiment=bees"], ["-m", "model=resnet50,resnet34"]):
        assert "is ambiguous" in refused(*argv)
    assert seeds("experiment=ants") == [77], "the default model is the runner's own"


def test_in_a_copy_of_the_runners_own_conf_nothing_is_ambiguous(project):
    shutil.copytree(CONF_DIR, project.parent, dirs_exist_ok=True)
    assert runner.load_config([]).seed == runner.load_config(["experiment=digits"]).seed == 1
    assert seeds("experiment=ants") == [77]


def test_the_runners_own_checkout_adds_no_folder(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert read_command_line([]).folders == ()


def test_a_conf_without_experiments_is_somebody_elses(project):
    shutil.rmtree(project)
    (project.parent / "optimizer").mkdir()
    (project.parent / "optimizer" / "mine.yaml").write_text("defaults: [sgd]\n")
    assert read_command_line([]).folders == ()
    assert "no such option" in refused("optimizer=mine")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults: [../../evil]\n", "must be the name of an option"),
        ("hydra: {callbacks: {x: {_target_: os.getcwd}}}\n", "hydra.callbacks"),
        ("hydra: {job: {env_set: {A: b}}}\n", "hydra.job.env_set"),
        ("output_dir: '${oc.decode:x}'\n", "oc.decode"),
    ],
)
def test_it_may_do_no_more_than_one_of_a_typed_folder(project, text, told):
    (project / "evil.yaml").write_text(f"# @package _global_\n{text}")
    assert told in refused("experiment=evil")
    assert told in refused("-m", "hydra/sweeper=basic", "experiment=glob(evil)")


@pytest.mark.long
def test_the_log_names_its_file_also_in_each_trial_of_a_sweep(run_cli, tiny, project, tmp_path):
    typed = [item for item in tiny("trainer.max_steps=1") if not item.startswith(("data=", "data.num_classes"))]
    cwd = project.parents[1]
    done = run_cli("experiment=ants", *typed, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert f"experiment  {project / 'ants.yaml'}\n" in done.stdout
    done = run_cli("-m", "experiment=ants", *typed, "seed=1,2", "sweep.dir=sweep", cwd=cwd)
    assert done.returncode == 0, done.stderr
    logs = [*tmp_path.glob("outputs/*/*/logs/rank_0.log"), *(cwd / "sweep").glob("?/logs/rank_0.log")]
    assert len(logs) == 3
    for log in logs:
        assert f"experiment  {project / 'ants.yaml'}\n" in log.read_text()


def test_a_sweep_with_it_is_resumed_here_and_elsewhere_once_its_folder_is_typed(project, tmp_path, monkeypatch):
    argv = ["-m", "experiment=ants", "optimizer.lr=0.1,0.2", "sweep.dir=../sweep", "hydra/launcher=basic"]
    trained: list[float] = []

    def train(job):
        trained.append(job.config.optimizer.lr)
        (job.folder / "run.json").write_text(json.dumps({"status": "completed", "attempts": 1}))
        row = {"epoch": 1, "val_top1": 0.5, "val_loss": 1.0, "epoch_seconds": 1.0}
        (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        return 1.0

    monkeypatch.setattr("sys.argv", ["runner", *argv])
    monkeypatch.setattr("runner.cli.commands.resume.train_job_of_sweep", train)
    compose_jobs(argv, train)
    assert trained == [0.1, 0.2]
    sweep = tmp_path / "sweep"
    assert not any("config-dir" in item for item in json.loads((sweep / "sweep.json").read_text())["argv"])
    shutil.rmtree(sweep / "1")
    assert resume([f"run={sweep}"]) == 0
    assert trained == [0.1, 0.2, 0.2]
    shutil.rmtree(sweep / "0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--config-dir="):
        resume([f"run={sweep}"])
    assert resume([f"run={sweep}", f"--config-dir={project.parent}"]) == 0
    assert trained == [0.1, 0.2, 0.2, 0.1]


def test_a_shell_completes_it(run_cli, project):
    for line in ("runner experiment=", "runner validate experiment=a"):
        done = run_cli("-sc", "query=bash", cwd=project.parents[1], COMP_LINE=line)
        assert "experiment=ants" in done.stdout.split(), done.stderr


@pytest.mark.long
def test_a_run_of_it_is_evaluated_and_resumed_from_its_saved_config(run_cli, tiny, project, tmp_path):
    typed = [item for item in tiny("trainer.max_steps=1") if not item.startswith(("data=", "data.num_classes"))]
    assert run_cli("experiment=ants", *typed, cwd=project.parents[1]).returncode == 0
    (run_dir,) = (path.parent for path in tmp_path.glob("outputs/*/*/run.json"))
    (project / "ants.yaml").unlink()
    for argv in (["evaluate", f"run={run_dir}"], ["resume", f"run={run_dir}", "trainer.max_steps=2"]):
        done = run_cli(*argv, cwd=project.parents[1])
        assert done.returncode == 0, done.stderr
