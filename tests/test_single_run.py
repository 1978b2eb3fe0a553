"""A config that is composed once is the config that `hydra.main` composes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import main as hydra_main
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.compose import Job, compose_jobs
from runner.conf_folder import CONF_DIR
from runner.errors import ConfigError
from runner.single_run import run_composed_once


class _Seen:
    """Keeps what Hydra calls it with."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def __call__(self, config: DictConfig) -> None:
        nodes = {"hydra": HydraConfig.get(), "config": config}
        self.values = {name: OmegaConf.to_container(node, resolve=False) for name, node in nodes.items()}


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


def _by_hydra(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen = _Seen()
    monkeypatch.setattr(sys, "argv", ["runner", *arguments])
    hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")(seen)()
    return seen.values


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["++optimizer.lr=0.5", "model=resnet34", "++data.root=/images"],
        ["hydra.mode=RUN", "hydra.job.name=mine"],
        ["experiment=imagenet_resnet50"],
    ],
)
def test_composes_what_hydra_main_composes(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _Seen()
    assert run_composed_once(arguments, CONF_DIR, "train", seen)
    theirs = _by_hydra(arguments, monkeypatch)
    theirs["hydra"]["job"]["name"] = seen.values["hydra"]["job"]["name"]  # after this file, here
    assert seen.values == theirs
    assert seen.values["hydra"]["mode"].name == "RUN"
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    "arguments",
    [["--multirun"], ["--cfg", "job"], ["hydra.mode=MULTIRUN"], ["++seed=1,2"], ["model=nothing"], ["++a=["]],
)
def test_leaves_to_hydra_what_is_no_plain_run(arguments: list[str]) -> None:
    seen = _Seen()
    assert not run_composed_once(arguments, CONF_DIR, "train", seen)
    assert seen.values == {}
    assert not GlobalHydra.instance().is_initialized()


def test_an_error_of_the_task_is_raised() -> None:
    def task(_: DictConfig) -> None:
        raise ZeroDivisionError("of the task")

    with pytest.raises(ZeroDivisionError, match="of the task"):
        run_composed_once([], CONF_DIR, "train", task)
    assert not GlobalHydra.instance().is_initialized()


def test_an_experiment_may_ask_for_a_multirun(tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n"
    (tmp_path / "conf" / "experiment" / "swept.yaml").write_text(text)
    chosen = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "experiment=swept", f"sweep.dir={tmp_path / 'sweep'}"]
    jobs: list[Job] = []
    compose_jobs([*chosen, "hydra/sweeper=basic", "hydra/launcher=basic", "seed=3,4"], "train", jobs.append)
    assert [job.config.seed for job in jobs] == [3, 4]
    assert [job.folder for job in jobs] == [tmp_path / "sweep" / "0", tmp_path / "sweep" / "1"]


def test_several_values_need_a_multirun() -> None:
    with pytest.raises(ConfigError, match="seed"):
        compose_jobs(["seed=3,4"], "train", lambda _: None)
