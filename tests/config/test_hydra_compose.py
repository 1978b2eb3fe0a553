"""A config that is composed by `hydra.compose` is the config that `hydra.main` composes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import main as hydra_main
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from runner.base.errors import ConfigError
from runner.config import CONF_DIR
from runner.config.hydra_compose import ComposedJob, compose_values
from tests.composed import compose_jobs


def _by_hydra(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    seen: list[DictConfig] = []
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", ["runner", *arguments])
    hydra_main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")(seen.append)()
    values = OmegaConf.to_container(seen[0], resolve=False)
    assert isinstance(values, dict)
    return values


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
    composed = OmegaConf.to_container(compose_values(arguments), resolve=False)
    assert isinstance(composed, dict)
    del composed["hydra"]
    assert composed == _by_hydra(arguments, monkeypatch)
    assert not GlobalHydra.instance().is_initialized()


def test_an_experiment_may_ask_for_a_multirun(tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n"
    (tmp_path / "conf" / "experiment" / "swept.yaml").write_text(text)
    chosen = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "experiment=swept", f"sweep.dir={tmp_path / 'sweep'}"]
    jobs: list[ComposedJob] = []
    compose_jobs([*chosen, "hydra/sweeper=basic", "hydra/launcher=basic", "seed=3,4"], jobs.append)
    assert [job.config.seed for job in jobs] == [3, 4]
    assert [job.folder for job in jobs] == [tmp_path / "sweep" / "0", tmp_path / "sweep" / "1"]


def test_several_values_need_a_multirun() -> None:
    with pytest.raises(ConfigError, match="seed"):
        compose_jobs(["seed=3,4"], lambda _: None)
