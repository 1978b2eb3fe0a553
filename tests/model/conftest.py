from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runner.config.schema.model import CustomConfig, DenseNetConfig, ResNetConfig, TimmConfig, TorchvisionConfig
from tests.made_package import make_package

PLAIN: dict[str, Any] = {"average_flips": False, "checkpoint_activations": False}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.fixture
def resnet() -> Callable[..., ResNetConfig]:
    def make(**changes: Any) -> ResNetConfig:
        values = {"name": "resnet18", "weights": None, "stem": "imagenet"}
        values |= {"zero_init_residual": False, "blur_pool": False}
        return ResNetConfig(family="resnet", **{**PLAIN, **values, **changes})

    return make


@pytest.fixture
def densenet() -> Callable[..., DenseNetConfig]:
    def make(**changes: Any) -> DenseNetConfig:
        values = {"name": "densenet121", "weights": None, "stem": "imagenet", "memory_efficient": False}
        return DenseNetConfig(family="densenet", **{**PLAIN, **values, **changes})

    return make


@pytest.fixture
def torchvision_model() -> Callable[..., TorchvisionConfig]:
    def make(name: str, weights: str | None = None) -> TorchvisionConfig:
        return TorchvisionConfig(family="torchvision", name=name, weights=weights, **PLAIN)

    return make


@pytest.fixture
def custom() -> Callable[..., CustomConfig]:
    def make(name: str, weights: str | None = None, **arguments: Any) -> CustomConfig:
        return CustomConfig(family="custom", name=name, weights=weights, arguments=arguments, **PLAIN)

    return make


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of torch.hub's weights, empty, and no network."""

    def unreachable(*args: object, **kwargs: object) -> None:
        raise AssertionError("a test went to the network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "urlopen", unreachable)
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def install_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a distribution on the path that offers models: install_models(code, my_net="its_module:factory")."""

    def install(code: str, *, module: str = "model_zoo_of_a_test", **entries: str) -> None:
        site = make_package(tmp_path / f"site_{module}", module, code, **entries)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)

    return install


@pytest.fixture
def same_values() -> Callable[[nn.Module | dict[str, Any], nn.Module | dict[str, Any]], bool]:
    def compare(first: nn.Module | dict[str, Any], second: nn.Module | dict[str, Any]) -> bool:
        one, two = (item.state_dict() if isinstance(item, nn.Module) else item for item in (first, second))
        return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)

    return compare


@pytest.fixture
def timm_model() -> Callable[..., TimmConfig]:
    def make(**changes: Any) -> TimmConfig:
        keys = ("weights", "drop_rate", "drop_path_rate", "global_pool", "img_size")
        return TimmConfig(family="timm", **{**dict.fromkeys(keys), **PLAIN, **changes})

    return make
