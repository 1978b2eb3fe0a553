"""Every YAML file in conf/ is composed and judged, however deep it lies and whoever adds it."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from runner.compose import CONF_DIR, Job, compose_jobs

# Options that can't stand alone.
NEEDED = {
    "model=torchvision": ("model.name=efficientnet_b0",),
    "model=custom": ("model.name=mine",),
    "data=folder": ("data.root=photos",),
}


def yaml_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.yaml"))


def selections(folder: Path) -> list[tuple[str, ...]]:
    """What chooses each option of each group under a conf folder; shared files (_x.yaml) are no options."""
    chosen: list[tuple[str, ...]] = [()]
    for path in yaml_files(folder):
        group = path.parent.relative_to(folder).as_posix()
        if group == "." or path.stem.startswith("_"):
            continue
        choice = f"{group}={path.stem}"
        # Experiments may build on any data, and a root does no harm where there is none.
        needed = ("data.root=photos",) if group == "experiment" else NEEDED.get(choice, ())
        chosen.append((choice, *needed))
    return chosen


SELECTIONS = selections(CONF_DIR)
PRIMARY = [path.stem for path in sorted(CONF_DIR.glob("*.yaml"))]


def jobs_of(argv: tuple[str, ...], primary: str = "train") -> list[Job]:
    jobs: list[Job] = []
    compose_jobs(argv, primary, jobs.append)
    return jobs


@pytest.fixture
def opened(monkeypatch):
    """The files that are opened while a test runs."""
    paths: set[Path] = set()
    real_open = builtins.open

    def open_and_note(file, *args, **kwargs):
        if isinstance(file, str | Path):
            paths.add(Path(file).resolve())
        return real_open(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", open_and_note)
    return paths


@pytest.mark.parametrize("argv", SELECTIONS, ids=[" ".join(argv) or "defaults" for argv in SELECTIONS])
def test_each_option_is_composed_and_valid(argv, opened):
    (job,) = jobs_of(argv)
    assert job.overrides == argv
    group, _, option = argv[0].partition("=") if argv else ("", "", "")
    assert not argv or (CONF_DIR / group / f"{option}.yaml").resolve() in opened
    if group == "model" and option not in ("torchvision", "custom"):
        assert job.config.model.name == option
    if group in ("optimizer", "schedule"):
        assert getattr(job.config, group).name == option
    if group == "data":
        assert job.config.data.source == option


@pytest.mark.parametrize("primary", PRIMARY)
def test_each_primary_config_is_composed_and_valid(primary):
    assert len(jobs_of((), primary)) == 1


def test_each_file_is_reached_by_an_option(opened):
    for primary in PRIMARY:
        jobs_of((), primary)
    for argv in SELECTIONS:
        jobs_of(argv)
    unreached = [path for path in yaml_files(CONF_DIR) if path.resolve() not in opened]
    assert unreached == [], "no option uses these files"


def test_a_file_that_somebody_adds_is_found(tmp_path):
    for name in ("train.yaml", "model/small.yaml", "model/_shared.yaml", "experiment/a/deep.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert selections(tmp_path) == [
        (),
        ("experiment/a=deep",),
        ("model=small",),
    ]
    assert tmp_path / "model" / "_shared.yaml" in yaml_files(tmp_path)


EXPERIMENTS = sorted((CONF_DIR / "experiment").rglob("*.yaml"))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=[file.stem for file in EXPERIMENTS])
def test_each_experiment_says_what_it_is_for_what_it_costs_and_where_it_comes_from(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_"
    head = [line for line in lines[1:] if line.startswith("#")]
    assert len(head[0]) > 20, "one line for --help"
    for word in ("Target:", "Cost:", "Source:"):
        assert any(line.startswith(f"# {word}") for line in head), word


def test_the_defaults_are_those_of_the_hosted_trainer():
    # https://learn.microsoft.com/azure/machine-learning/component-reference/train-pytorch-model
    config = jobs_of(())[0].config
    assert (config.trainer.epochs, config.data.batch_size, config.schedule.warmup_epochs) == (5, 16, 0)
    assert (config.seed, config.trainer.patience, config.trainer.print_every) == (1, 3, 10)
    # The rate is our own: measured on digits.
    assert config.optimizer.lr == 0.01
    assert (config.schedule.name, config.schedule.power, config.optimizer.lr_scaling) == ("poly", 2, "linear")


def test_the_imagenet_experiment_has_the_rate_of_goyal_et_al():
    config = jobs_of(("experiment=imagenet_resnet50", "data.root=photos"))[0].config
    assert config.optimizer.lr / config.data.batch_size * 256 == pytest.approx(0.1)
    assert config.optimizer.lr_scaling == "linear"
    assert (config.model.name, config.model.weights, config.trainer.epochs) == ("resnet50", None, 50)
    assert (config.schedule.warmup_epochs, config.trainer.patience) == (5, None)


def test_the_transfer_experiment_trains_the_head_first_then_all_layers():
    config = jobs_of(("experiment=transfer", "data.root=photos"))[0].config
    assert (config.model.name, config.model.weights) == ("resnet18", "IMAGENET1K_V1")
    assert 0 < config.trainer.freeze_backbone_epochs < config.trainer.epochs
    assert config.data.source == "folder"
