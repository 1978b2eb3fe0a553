"""The promises of the front door about configs: every mistake is refused, named and told where it stands."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config import group_options
from runner.config.hydra_compose import ComposedJob
from runner.config.overrides import permissive
from tests.composed import compose_jobs, must_not_run, refusal

ROOT = Path(__file__).resolve().parents[2]
HEADER = "# @package _global_\n"


def composed(*argv: str) -> ComposedJob:
    jobs: list[ComposedJob] = []
    compose_jobs(argv, jobs.append)
    (job,) = jobs
    return job


@pytest.fixture
def experiment(tmp_path):
    """Writes my/experiment/mine.yaml and gives the arguments that choose it."""

    def write(text: str, name: str = "mine") -> tuple[str, ...]:
        folder = tmp_path / "my" / "experiment"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return "--config-dir", str(tmp_path / "my"), f"experiment={name}"

    return write


# What is typed, and what the one problem must say: its key, and pieces of the whole message.
REFUSED = [
    # Unknown keys, with the nearest spelling.
    (("trainer.epohcs=3",), "trainer.epohcs", ["no such key", "did you mean trainer.epochs?", "command line"]),
    (("+trainer.epohcs=3",), "trainer.epohcs", ["did you mean trainer.epochs?", "from the command line"]),
    (("++trainer.epohcs=3",), "trainer.epohcs", ["did you mean trainer.epochs?", "from the command line"]),
    (("+epochs=3",), "epochs", ["no such key", "did you mean trainer.epochs?"]),
    (("epochs=3",), "epochs", ["no such key", "did you mean trainer.epochs?"]),
    (("sead=3",), "sead", ["did you mean seed?"]),
    (("modle=resnet50",), "modle", ["did you mean model?"]),
    (("no.such=1",), "no.such", ["no.such = 1: no such key [from the command line]"]),
    (("trainr.epochs=1",), "trainr.epochs", ["trainr.epochs = 1: no such key; did you mean trainer.epochs?"]),
    (("trainer.no.such=1",), "trainer.no.such", ["trainer.no.such = 1: no such key"]),
    (("no.a.b=1",), "no.a.b", ["no.a.b = 1: no such key"]),
    (("no.such={}",), "no.such", ["no.such = {}: no such key"]),
    (("=3",), "", ["'=3': a key is missing before `=`"]),
    (("++=3",), "", ["'++=3': a key is missing before `=`"]),
    (("~=3",), "", ["'~=3': a key is missing before `=`"]),
    (("data.normalize.means=[1,1,1]",), "data.normalize.means", ["did you mean data.normalize.mean?"]),
    (("optimizer=adamw", "optimizer.momentum=0.5"), "optimizer.momentum", ["it belongs to optimizer.name = sgd"]),
    (("schedule.step_epochs=3",), "schedule.step_epochs", ["it belongs to schedule.name = step"]),
    (("trainer.epochs.x=3",), "trainer.epochs", ["must be a whole number"]),
    # Values of a wrong kind.
    (("trainer.epochs=five",), "trainer.epochs", ["'five'", "must be a whole number"]),
    (("trainer.epochs=true",), "trainer.epochs", ["must be a whole number"]),
    (("trainer.epochs=5.5",), "trainer.epochs", ["5.5", "must be a whole number"]),
    (("trainer.epochs=5.0",), "trainer.epochs", ["must be a whole number"]),
    (("trainer.epochs='5'",), "trainer.epochs", ["must be a whole number"]),
    (("trainer.epochs=null",), "trainer.epochs", ["null", "must be a whole number"]),
    (("optimizer.lr=[0.1,0.2]",), "optimizer.lr", ["[0.1, 0.2]", "must be a number"]),
    (("optimizer.lr=fast",), "optimizer.lr", ["'fast'", "must be a number"]),
    (("optimizer.lr=true",), "optimizer.lr", ["must be a number"]),
    (("optimizer.lr=inf",), "optimizer.lr", ["must be a finite number"]),
    (("optimizer.lr=nan",), "optimizer.lr", ["must be a finite number"]),
    (("trainer.compile=1",), "trainer.compile", ["must be true or false"]),
    (("trainer.compile=yes",), "trainer.compile", ["must be true or false"]),
    (("output_dir=[3]",), "output_dir", ["must be text"]),
    (("data.normalize=5",), "data.normalize", ["must be a group of keys"]),
    (("data.normalize.mean=[0.5]",), "data.normalize.mean", ["must be a list of 3"]),
    (("data.normalize.mean=[0.5,0.5,0.5,0.5]",), "data.normalize.mean", ["must be a list of 3"]),
    (("data.train_transforms=resize",), "data.train_transforms", ["must be a list"]),
    (("data.workers=many",), "data.workers", ["must be 'auto' or a whole number"]),
    # Values out of range.
    (("trainer.epochs=-1",), "trainer.epochs", ["-1", "must be at least 1"]),
    (("optimizer.lr=-0.1",), "optimizer.lr", ["-0.1", "must be greater than 0"]),
    (("seed=9223372036854775808",), "seed", ["must be less than 9223372036854775808"]),
    (("optimizer=adamw", "optimizer.betas=[0.9,1]"), "optimizer.betas.1", ["must be less than 1", "command line"]),
    (("trainer.precision=bf61",), "trainer.precision", ["'auto', 'fp32', 'bf16' or 'fp16'", "did you mean bf16?"]),
    (("model.name=resnet51",), "model.name", ["'resnet152'", "did you mean resnet50?"]),
    # Groups and their options.
    (("model=resnet51",), "model", ["'resnet51'", "no such option", "densenet121", "did you mean resnet50?"]),
    (("+model=resnet51",), "model", ["no such option", "did you mean resnet50?"]),
    (("optimizer=lion",), "optimizer", ["there are adamw, lamb, lars, muon, sgd"]),
    (("experiment=digit",), "experiment", ["no such option", "did you mean digits?"]),
    (("trainer=5",), "trainer", ["must be the name of an option"]),
    (("model=null",), "model", ["must be the name of an option"]),
    (("optimizer.name=adamw",), "optimizer.name", ["is set by the option", "choose it with optimizer=adamw"]),
    (("model.family=densenet",), "model.family", ["is set by the option", "choose it with model=…"]),
    (("~optimizer",), "optimizer", ["this key is missing", "choose an option with optimizer=…"]),
    (("~trainer.epochs",), "trainer.epochs", ["this key is missing"]),
    (("sweep.space={optimizer.lr:{low:1}}",), "sweep.space.optimizer.lr.kind", ["must be one of 'choice', 'uniform',"]),
    (("sweep.space={seed:{kind:uniform,low:1,high:0}}",), "sweep.space.seed", ["low = 1 must be less than high = 0"]),
    (
        ("sweep.space={seed:{kind:uniform,low:1,high:2,hih:2}}",),
        "sweep.space.seed.hih",
        ["did you mean sweep.space.seed.high"],
    ),
    (("data.train_transforms=[{size:3}]",), "data.train_transforms.0.name", ["must be one of 'resize', "]),
    # Values that must be given.
    (("model=torchvision",), "model.name", ["needs a value: model.name=…"]),
    (("model.weights=???",), "model.weights", ["needs a value: model.weights=…"]),
    (("data=folder",), "data.root", ["data.root=FOLDER"]),
    # Rules between keys.
    (("trainer.precision=fp16", "trainer.device=cpu"), "trainer.precision", ["trainer.device = cpu", "bf16 or fp32"]),
    (("schedule.warmup_epochs=5",), "schedule.warmup_epochs", ["must be less than trainer.epochs = 5"]),
    (("model.weights=ResNet50_Weights.DEFAULT",), "model.weights", ["weights of resnet50", "model.name = 'resnet18'"]),
    (("model.weights=IMAGENET1K_V2",), "model.weights", ["allowed: IMAGENET1K_V1, DEFAULT"]),
    # Interpolations.
    (
        ("seed=${nowhere.to.be.found}",),
        "seed",
        ["${nowhere.to.be.found} names a key that is not there", "from the command line"],
    ),
    (("trainer.epochs=${trainer.epochs}",), "trainer.epochs", ["refers to itself", "from the command line"]),
    (("data.normalize.mean=['${nowhere}',0.5,0.5]",), "data.normalize.mean.0", ["names a key that is not there"]),
    # What is not read as it was meant.
    (("trainer.epochs=1,2",), "trainer.epochs", ["started with -m"]),
    (("trainer.epochs=choice(1,2)",), "trainer.epochs", ["started with -m"]),
    (("trainer.epochs=[3",), "", ["'trainer.epochs=[3' can't be read as key=value"]),
    (("seed=~/photos",), "", ["'seed=~/photos' can't be read as key=value", "quote"]),
    (("--config-dir", "no/such/folder"), "", ["no/such/folder", "not found"]),
]


@pytest.mark.parametrize(("argv", "key", "pieces"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_a_mistake_on_the_command_line_is_refused_with_its_key_and_what_is_allowed(argv, key, pieces):
    error = refusal(*argv)
    (problem,) = error.problems
    assert problem.key == key
    for piece in pieces:
        assert piece in str(error)


# The text of the experiment file, and what the one problem must say.
REFUSED_FILES = [
    (HEADER + "trainer:\n  epohcs: 3\n", ["trainer.epohcs = 3", "did you mean trainer.epochs?", "from {file}"]),
    (HEADER + "trianer:\n  epochs: 3\n", ["trianer", "did you mean trainer.epochs?", "from {file}"]),
    (HEADER + "trainer:\n  epochs: 0\n", ["trainer.epochs = 0", "must be at least 1", "from {file}"]),
    (HEADER + "trainer:\n  epochs: ${nowhere}\n", ["trainer.epochs", "names a key that is not there", "from {file}"]),
    (HEADER + "model: resnet50\n", ["model = 'resnet50'", "must be a group of keys", "from {file}"]),
    (HEADER + "output_dir: !!binary aGVsbG8=\n", ["output_dir", "not binary data", "from {file}"]),
    (
        HEADER + "defaults:\n  - override /model: resnet51\n",
        ["'resnet51'", "did you mean resnet50?", "from experiment=mine"],
    ),
    (
        HEADER + "defaults:\n  - override /modle: resnet50\n",
        ["modle", "did you mean `override /model: …`?", "mine.yaml"],
    ),
    (HEADER + "defaults:\n  - override model: resnet50\n", ["did you mean `override /model: …`?", "mine.yaml"]),
    (HEADER + "defaults:\n  - nothing_of_this_name\n", ["nothing_of_this_name"]),
    # Without the header all keys would land under `experiment`.
    ("trainer:\n  epochs: 3\n", ["{file} must begin with the line `# @package _global_`"]),
    ("defaults:\n  - override /model: resnet50\n", ["mine.yaml must begin with the line `# @package _global_`"]),
    ("", ["{file} must begin with the line `# @package _global_`"]),
    # No YAML, or not what a config can be.
    (HEADER + "trainer:\n  epochs: [3\nmodel: 2\n", ["{file}, line 4, column 6", "this is no YAML"]),
    (HEADER + "trainer:\n\tepochs: 3\n", ["{file}, line 3, column 1", "this is no YAML"]),
    (HEADER + "trainer:\n  epochs: 3\n  epochs: 4\n", ["{file}, line 4", "the key epochs stands here a second time"]),
    (HEADER + "trainer: !!python/object:os.system x\n", ["{file}, line 2", "python/object"]),
    (HEADER + "3\n", ["int"]),
    (HEADER + "- trainer\n", ["experiment/mine"]),
]


@pytest.mark.parametrize(("text", "pieces"), REFUSED_FILES, ids=[repr(case[0][-40:]) for case in REFUSED_FILES])
def test_a_mistake_in_an_experiment_file_is_refused_and_the_file_named(experiment, tmp_path, text, pieces):
    error = refusal(*experiment(text))
    assert len(error.problems) == 1
    for piece in pieces:
        assert piece.format(file=tmp_path / "my" / "experiment" / "mine.yaml") in str(error)


def test_a_file_that_is_no_text_is_refused(experiment, tmp_path):
    argv = experiment(HEADER)
    (tmp_path / "my" / "experiment" / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in str(refusal(*argv))


def test_mistakes_in_transforms_are_reported_with_their_index(experiment):
    text = HEADER + (
        "data:\n  train_transforms:\n"
        "    - {name: resize, sise: 32}\n"
        "    - {name: rezise, size: 32}\n"
        "    - {name: random_crop, size: 32, padding: -1}\n"
        "    - {name: random_resized_crop, size: 32, scale: [1.0, 0.1]}\n"
    )
    problems = {problem.key: str(problem) for problem in refusal(*experiment(text)).problems}
    assert set(problems) == {
        "data.train_transforms.0.size",
        "data.train_transforms.0.sise",
        "data.train_transforms.1.name",
        "data.train_transforms.2.padding",
        "data.train_transforms.3.scale",
    }
    assert "this key is missing" in problems["data.train_transforms.0.size"]
    assert "did you mean data.train_transforms.0.size?" in problems["data.train_transforms.0.sise"]
    assert "did you mean resize?" in problems["data.train_transforms.1.name"]
    assert "must be at least 0" in problems["data.train_transforms.2.padding"]
    assert "the smallest value comes first, got [1.0, 0.1]" in problems["data.train_transforms.3.scale"]
    assert "mine.yaml" in problems["data.train_transforms.0.sise"]


def test_three_mistakes_are_reported_together():
    error = refusal("trainer.epochs=-1", "optimizer.lr=fast", "data.bach_size=3")
    assert {problem.key for problem in error.problems} == {"trainer.epochs", "optimizer.lr", "data.bach_size"}
    assert str(error).startswith("3 mistakes\n  1. ")


def test_mistakes_of_every_kind_are_reported_together(experiment):
    argv = experiment(HEADER + "trainer:\n  epohcs: 3\n")
    error = refusal(
        *argv,
        "model=resnet51",
        "optimizer.name=adamw",
        "seed=${nowhere}",
        "optimizer.lr=-1",
        "schedule.warmup_epochs=9",
    )
    keys = {problem.key for problem in error.problems}
    assert keys == {"model", "optimizer.name", "seed", "optimizer.lr", "schedule.warmup_epochs", "trainer.epohcs"}


def test_the_error_for_an_unknown_option_in_a_list_names_the_options(experiment):
    experiment("trainer: {epochs: 3}")
    config_dir, folder, _ = experiment(HEADER)
    message = str(refusal(config_dir, folder, "experiment=[digits,mime]"))
    assert re.search(r"there are .*digits, .*, mine, .*transfer; did you mean mine\?", message)


def test_a_byte_order_mark_is_reported(experiment):
    assert "begins with a byte order mark" in str(refusal(*experiment("\ufeff" + HEADER + "trainer: {epochs: 3}")))


def test_a_folder_for_hydra_is_refused_and_not_made(tmp_path):
    message = str(refusal(f"hydra.run.dir={tmp_path / 'made'}"))
    assert "hydra.run.dir" in message
    assert "output_dir=" in message
    assert not (tmp_path / "made").exists()


def test_each_problem_says_where_its_key_was_set(experiment, tmp_path):
    argv = experiment(HEADER + "trainer:\n  epochs: 0\n  keep: 0\n")
    origins = {problem.key: problem.origin for problem in refusal(*argv, "trainer.keep=-1", "seed=-1").problems}
    file = f"from {tmp_path / 'my' / 'experiment' / 'mine.yaml'}"
    assert origins == {"trainer.epochs": file, "trainer.keep": "from the command line", "seed": "from the command line"}


def test_of_two_experiments_the_wrong_one_is_named(experiment, tmp_path):
    experiment(HEADER + "seed: 2\n", name="good")
    argv = experiment(HEADER + "trainer:\n  epohcs: 3\n", name="bad")
    (problem,) = refusal(*argv[:2], "experiment=[good,bad]").problems
    assert problem.origin == f"from {tmp_path / 'my' / 'experiment' / 'bad.yaml'}"


ACCEPTED = [
    ((), "trainer.epochs", 5),
    (("trainer.epochs=7",), "trainer.epochs", 7),
    (("+trainer.epochs=7",), "trainer.epochs", 7),
    (("++trainer.epochs=7",), "trainer.epochs", 7),
    (("+seed=7",), "seed", 7),
    (("optimizer.lr=1",), "optimizer.lr", 1.0),
    (("optimizer.lr=1e-3",), "optimizer.lr", 0.001),
    (("model=densenet121",), "model.name", "densenet121"),
    (("+model=densenet121",), "model.name", "densenet121"),
    (("experiment=null", "seed=4"), "seed", 4),
    (("seed=${trainer.epochs}",), "seed", 5),
    (("model=custom", "model.name=mine", "model.arguments.width=3"), "model.arguments", {"width": 3}),
    (("data.image_size=48",), "data.train_transforms.0.size", 48),
    (("data.train_transforms=[]",), "data.train_transforms", []),
]


@pytest.mark.parametrize(("argv", "key", "value"), ACCEPTED, ids=[" ".join(case[0]) for case in ACCEPTED])
def test_valid_overrides_are_composed(argv, key, value):
    node = composed(*argv).config.model_dump(mode="json")
    for part in key.split("."):
        node = node[int(part)] if isinstance(node, list) else node[part]
    assert node == value


def test_an_experiment_may_be_chosen_with_or_without_a_plus(experiment):
    argv = experiment(HEADER + "defaults:\n  - override /model: resnet34\ntrainer:\n  epochs: 7\n")
    jobs = [composed(*argv[:2], f"{sign}{argv[2]}") for sign in ("", "+", "++")]
    assert all(job.config == jobs[0].config for job in jobs)
    assert [job.overrides for job in jobs] == [("experiment=mine",)] * 3
    assert (jobs[0].config.model.name, jobs[0].config.trainer.epochs) == ("resnet34", 7)


SUBMITS = "defaults:\n  - override /dist: slurm\ndist: {slurm: {setup: [touch made]}}\n"
SWEEPS = """hydra: {mode: MULTIRUN, launcher: {_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher},
  sweeper: {params: {dist: slurm, "dist.slurm.setup": "[touch made]", "seed": "1,2"}}}\n"""


@pytest.mark.parametrize("text", [SUBMITS, SWEEPS])
def test_shell_commands_of_an_experiment_need_slurm_to_be_typed(experiment, tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = ("data=synthetic", *experiment(f"{HEADER}{text}"))
    for typed in ((), ("-m", "optimizer.lr=0.1,0.2"), ("dist.slurm.partition=gpu",)):
        error = refusal(*mine, *typed)
        assert {problem.key for problem in error.problems} == {"dist.slurm.setup"}
        assert '["touch made"]: are shell' in str(error) and "type dist=slurm;" in str(error)
    jobs: list[ComposedJob] = []
    for typed in ("dist=slurm", "dist.slurm.setup=[touch made]", "dist=default"):
        with contextlib.suppress(TypeError):  # of a sweep: None is no value for the leaderboard
            compose_jobs([*mine, typed], jobs.append)
    told = {(job.config.dist.launcher, job.config.dist.slurm.setup) for job in jobs}
    assert told == {("submitted", ("touch made",)), ("auto", ("touch made",))}


def test_the_command_line_beats_the_experiment(experiment):
    argv = experiment(HEADER + "trainer:\n  epochs: 7\n  keep: 4\n")
    trainer = composed(*argv, "trainer.epochs=9").config.trainer
    assert (trainer.epochs, trainer.keep) == (9, 4)


def test_overrides_are_recorded_as_typed():
    assert composed("+model=resnet34", "++trainer.epochs=2", "optimizer.lr=0.1").overrides == (
        "model=resnet34",
        "trainer.epochs=2",
        "optimizer.lr=0.1",
    )


def test_a_single_run_makes_no_folder_and_leaves_argv_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = list(sys.argv)
    assert composed("seed=2").folder is None
    refusal("seed=-2")
    assert list(tmp_path.iterdir()) == []
    assert sys.argv == before


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("trainer.epochs=3", "++trainer.epochs=3"),
        ("+trainer.epochs=3", "++trainer.epochs=3"),
        ("+seed=3", "++seed=3"),
        ("++a.b=3", "++a.b=3"),
        ("model=resnet50", "model=resnet50"),
        ("+experiment=digits", "experiment=digits"),
        ("experiment=null", "~experiment"),
        ("hydra.sweep.dir=x", "hydra.sweep.dir=x"),
        ("hydra/launcher=basic", "hydra/launcher=basic"),
        ("+mine=x", "+mine=x"),
        ("~trainer.epochs", "~trainer.epochs"),
        ("--config-dir=a.b", "--config-dir=a.b"),
        ("data.root=a=b", "++data.root='a=b'"),
    ],
)
def test_overrides_are_read_permissively(typed, read):
    assert permissive(typed) == read


def test_the_options_of_a_group_are_its_files_without_the_shared_ones():
    assert group_options("optimizer") == ["adamw", "lamb", "lars", "muon", "sgd"]
    assert {option[0] for option in group_options("model")}.isdisjoint("_.")


def test_a_config_survives_as_yaml(tmp_path):
    import yaml

    from runner.config.schema.checks.validation import validate_config

    config = composed("optimizer=adamw", "data=torchvision", "model.weights=IMAGENET1K_V1").config
    assert validate_config(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("runner optimizer=", {f"optimizer={name}" for name in ("adamw", "lamb", "lars", "muon", "sgd")}),
        ("runner experiment=dig", {"experiment=digits"}),
        ("runner trainer.ep", {"trainer.epochs="}),
        ("runner optimizer=adamw optimizer.ep", {"optimizer.eps="}),
        ("runner -m sc", {"schedule=", "schedule."}),
    ],
)
def test_the_shell_is_offered_options_and_keys(line, offered, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    compose_jobs(["--shell-completion", "query=bash"], must_not_run)
    assert set(capsys.readouterr().out.split()) == offered


def test_the_composed_config_is_shown_without_running_it(capsys):
    compose_jobs(["--cfg", "job", "trainer.epochs=7"], must_not_run)
    assert "epochs: 7" in capsys.readouterr().out


def in_process_of_its_own(tmp_path, *argv: str) -> subprocess.CompletedProcess[str]:
    """`python -m runner` in an empty folder; what torch is imported is told by the exit code 99."""
    script = (
        "import runpy, sys\n"
        "try:\n"
        "    runpy.run_module('runner', run_name='__main__', alter_sys=True)\n"
        "finally:\n"
        "    if 'torch' in sys.modules: sys.exit(99)\n"
    )
    folder = tmp_path / "empty"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, *argv],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert list(folder.iterdir()) == [], "a refusal leaves nothing behind"
    assert "Traceback" not in done.stderr
    return done


def test_a_process_refuses_a_typo_with_exit_code_2_and_without_torch(tmp_path):
    done = in_process_of_its_own(tmp_path, "trainer.epohcs=3")
    assert done.returncode == 2
    assert done.stderr.startswith("runner: ConfigError: trainer.epohcs = 3: no such key; did you mean trainer.epochs?")


def test_a_process_reports_all_mistakes_of_command_line_and_file(tmp_path, experiment):
    argv = experiment(HEADER + "trainer:\n  keep: 0\n")
    done = in_process_of_its_own(tmp_path, "train", *argv, "model=resnet51", "optimizer.lr=-1")
    assert done.returncode == 2
    assert done.stderr.startswith("runner: ConfigError: 3 mistakes\n")
    for piece in ("model = 'resnet51'", "optimizer.lr = -1", "trainer.keep = 0", "mine.yaml"):
        assert piece in done.stderr


def test_a_process_names_file_and_line_of_broken_yaml(tmp_path, experiment):
    done = in_process_of_its_own(tmp_path, "validate", *experiment(HEADER + "trainer: [1\nseed: 2\n"))
    assert done.returncode == 2
    assert done.stderr.startswith("runner: ConfigError: ")
    assert "mine.yaml, line 3" in done.stderr


@pytest.mark.parametrize(("argv", "shown"), [(["--help"], "--help all"), (["trainer", "--help"], "trainer.epochs=5")])
def test_help_is_given_without_torch(tmp_path, argv, shown):
    done = in_process_of_its_own(tmp_path, *argv)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_hydra_compose_and_judging_import_no_torch(tmp_path):
    script = (
        "import sys\n"
        "from tests.composed import compose_jobs, must_not_run, refusal\n"
        "compose_jobs(['model.weights=IMAGENET1K_V1'], lambda job: None)\n"
        "import runner.config.reference\n"
        "print([name for name in ('torch', 'torchvision', 'sklearn', 'tensorboard') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "path", ["~/photos", "/tmp/übung", "foto (1)", "2024", "it's", "C:\\data", "a=b", "photos", "a/b.c-d_e"]
)
def test_paths_are_taken_as_they_are_typed(path):
    job = composed("data=folder", f"data.root={path}")
    assert job.config.data.root == path
