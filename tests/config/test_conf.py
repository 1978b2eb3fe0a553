"""Every YAML file in conf/ is composed and judged, however deep it lies and whoever adds it."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from runner.base.errors import ConfigError
from runner.config import CONF_DIR
from runner.config.hydra_compose import ComposedJob
from runner.config.schema.checks.validation import MISSING
from tests.composed import compose_jobs

# Options that can't stand alone.
NEEDED = {
    "model=torchvision": ("model.name=efficientnet_b0",),
    "model=timm": ("model.name=convnext_tiny",),
    "model=custom": ("model.name=mine",),
    "schedule=piecewise": ("schedule.points=[[0, 1], [5, 0]]",),
    "data=folder": ("data.root=photos",),
    "data=csv": ("data.train=train.csv",),
}


def yaml_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.yaml"))


def selections(folder: Path) -> list[tuple[str, ...]]:
    """What chooses each option of each group under a conf folder; shared files (_x.yaml) are no options."""
    chosen: list[tuple[str, ...]] = []
    for path in yaml_files(folder):
        group = path.parent.relative_to(folder).as_posix()
        if group == "." or path.stem.startswith("_"):
            continue
        choice = f"{group}={path.stem}"
        # Experiments may build on a folder of the user's.
        text = path.read_text(encoding="utf-8")
        is_on_a_folder = group == "experiment" and ("/data: folder" in text or "- imagenet_" in text)
        needed = ("data.root=photos",) if is_on_a_folder else NEEDED.get(choice, ())
        chosen.append((choice, *needed))
    return chosen


SELECTIONS = selections(CONF_DIR)
# What a command takes besides the config of an experiment.
CALLS = sorted(path for path in CONF_DIR.glob("*.yaml") if path.stem != "train")


def jobs_of(argv: tuple[str, ...]) -> list[ComposedJob]:
    jobs: list[ComposedJob] = []
    compose_jobs(argv, jobs.append)
    return jobs


@dataclass(frozen=True)
class Reached:
    """What came of each selection, and the files that were opened for it."""

    results: dict[tuple[str, ...], list[ComposedJob] | ConfigError]
    opened: frozenset[Path]


@pytest.fixture(scope="module")
def reached() -> Reached:
    opened: set[Path] = set()
    results: dict[tuple[str, ...], list[ComposedJob] | ConfigError] = {}
    real_open = builtins.open

    def open_and_note(file, *args, **kwargs):
        if isinstance(file, str | Path):
            opened.add(Path(file).resolve())
        return real_open(file, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_and_note)
        for argv in [(), *SELECTIONS]:
            try:
                results[argv] = jobs_of(argv)
            except ConfigError as error:
                results[argv] = error
    return Reached(results, frozenset(opened))


@pytest.mark.parametrize("argv", SELECTIONS, ids=[" ".join(argv) for argv in SELECTIONS])
def test_each_option_is_composed_and_valid(argv, reached):
    result = reached.results[argv]
    assert not isinstance(result, ConfigError), str(result)
    (job,) = result
    assert job.overrides == tuple(item for item in argv if not item.startswith("hydra/"))
    group, _, option = argv[0].partition("=")
    if group == "model" and option not in ("torchvision", "timm", "custom"):
        assert job.config.model.name == option
    if group in ("optimizer", "schedule"):
        assert getattr(job.config, group).name == option
    if group == "data":
        assert job.config.data.source == option


def test_the_defaults_are_composed_and_valid(reached):
    assert not isinstance(reached.results[()], ConfigError), str(reached.results[()])


@pytest.mark.parametrize("file", CALLS, ids=[file.stem for file in CALLS])
def test_each_command_with_its_own_keys_has_rules(file):
    from runner.config.schema import calls

    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    (rules,) = [rules for command, rules in calls.CALLS.items() if command.replace(" ", "_") == file.stem]
    assert set(rules.model_fields) == set(values)
    given = {
        name: (1 if rules.model_fields[name].annotation is int else "given") if value == MISSING else value
        for name, value in values.items()
    }
    rules.model_validate_json(json.dumps(given))


def test_each_file_is_reached_by_an_option(reached):
    unreached = {path for path in yaml_files(CONF_DIR) if path.resolve() not in reached.opened}
    assert unreached - set(CALLS) == set()


def test_a_file_that_somebody_adds_is_found(tmp_path):
    for name in ("train.yaml", "model/small.yaml", "model/_shared.yaml", "experiment/a/deep.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert selections(tmp_path) == [("experiment/a=deep",), ("model=small",)]
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


def test_the_experiments_for_large_batches_have_the_batches_of_their_sources():
    """Steps of 16 processes for MLPerf's, of 4 for A3; ImageNet-1k has 1,281,167 images."""
    lars = jobs_of(("experiment=imagenet_resnet50_lars", "data.root=photos"))[0].config
    assert lars.data.batch_size * 16 == 3264
    assert round(1_281_167 / 3264 * lars.trainer.epochs) == 14523
    a3 = jobs_of(("experiment=imagenet_resnet50_a3", "data.root=photos"))[0].config
    assert a3.data.batch_size * 4 == 2048
    assert (a3.data.image_size, a3.data.eval_image_size, a3.data.eval_transforms[-1].size) == (160, 224, 224)


def test_the_transfer_experiment_trains_the_head_first_then_all_layers():
    config = jobs_of(("experiment=transfer", "data.root=photos"))[0].config
    assert (config.model.name, config.model.weights) == ("resnet18", "IMAGENET1K_V1")
    assert 0 < config.trainer.freeze_backbone_epochs < config.trainer.epochs
    assert config.data.source == "folder"
