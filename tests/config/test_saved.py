"""Saved configs with typed overrides: values, groups, keys that are newer than the run, another data.root."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.base.errors import CheckpointError, ConfigError
from runner.config.saved import load_saved
from runner.library import load_config


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    values = yaml.safe_load(load_config(["optimizer=sgd", "optimizer.lr=0.3"]).to_yaml())
    values["data"]["train"] = "/old/train"
    del values["trainer"]["keep"]  # as in a run from before there was this key
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return tmp_path


def test_a_typed_value_replaces_the_saved_one_alone(run_dir):
    config = load_saved(run_dir, ["optimizer.momentum=0.5"])
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.3, 0.5)


def test_a_typed_group_replaces_the_whole_group(run_dir):
    config = load_saved(run_dir, ["optimizer=adamw"])
    assert config.optimizer == load_config(["optimizer=adamw"]).optimizer


def test_a_key_that_is_newer_than_the_run_has_its_default(run_dir):
    assert load_saved(run_dir).trainer.keep == load_config().trainer.keep


def test_a_newer_key_that_follows_another_follows_that_of_the_run(tmp_path):
    values = yaml.safe_load(load_config(["data=digits", "data.image_size=48"]).to_yaml())
    del values["data"]["eval_image_size"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert load_saved(tmp_path).data.eval_image_size == 48


@pytest.mark.parametrize("option", ["torchvision", "timm", "custom"])
def test_a_model_that_several_libraries_have_keeps_the_keys_of_its_own(tmp_path, option):
    config = load_config([f"model={option}", "model.name=resnet18"])
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert load_saved(tmp_path).model == config.model


def test_another_root_resets_the_saved_paths_of_the_splits(run_dir):
    assert load_saved(run_dir).data.train == "/old/train"
    assert load_saved(run_dir, ["data=folder", "data.root=/new"]).data.train is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("experiment=digits", "is for a new run"),
        ("seed=1,2", "several values"),
        ("~trainer.keep", "needs all of its keys"),
        ("optimizer=nosuch", "no such option"),
    ],
)
def test_overrides_that_a_saved_config_does_not_take(run_dir, override, message):
    with pytest.raises(ConfigError, match=message):
        load_saved(run_dir, [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "holds no config"), ("data: 3", "data is no group"), ("seed: ${oc.env:HOME}", "has an interpolation")],
)
def test_a_damaged_config_is_refused_by_name(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_saved(tmp_path)
