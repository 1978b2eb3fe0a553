from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import cast

import pytest
import timm
import torch
from torch import nn
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.config.schema.model import ModelConfig, TorchvisionConfig
from runner.model.check import without_values
from runner.trainer.activations import checkpoint_activations, layers_with_statistics, statistics_kept

# torchvision's models without repeated blocks.
WITHOUT = ("alexnet", "googlenet", "inception_v3", "squeezenet", "vgg")


def config(name: str = "x", **changes: bool) -> ModelConfig:
    return cast(ModelConfig, SimpleNamespace(name=name, **{"checkpoint_activations": True, **changes}))


def step(module: nn.Module, images: torch.Tensor, told: ModelConfig) -> tuple[int, dict[str, torch.Tensor]]:
    """Bytes that the forward pass keeps, and gradients and buffers after a step."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(1)
    module.train()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = module(images).square().sum()
    with statistics_kept(layers_with_statistics(module, told)):
        loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    return kept, gradients | {name: value.clone() for name, value in module.named_buffers()}


BUILDERS = {
    "resnet18": lambda: models.resnet18(num_classes=3),
    "densenet121": lambda: models.densenet121(num_classes=3, drop_rate=0.2),
    "memory_efficient": lambda: models.densenet121(num_classes=3, memory_efficient=True),
    "convnext_tiny": lambda: models.convnext_tiny(num_classes=3, stochastic_depth_prob=0.5),
    "timm_resnet": lambda: timm.create_model("test_resnet", num_classes=3, drop_path_rate=0.5),
    "timm_vit": lambda: timm.create_model("test_vit", num_classes=3, img_size=64, drop_path_rate=0.5),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_less_is_kept_and_a_step_is_the_same_to_the_last_bit(name):
    """Dropout, stochastic depth and BatchNorm's statistics included."""
    torch.manual_seed(0)
    images, plain = torch.randn(4, 3, 64, 64), BUILDERS[name]()
    again = copy.deepcopy(plain)
    told = config(name, memory_efficient=name == "memory_efficient", checkpoint_activations=name != "memory_efficient")
    checkpoint_activations(again, told)
    if name == "memory_efficient":
        for layer in plain.modules():
            layer.memory_efficient = False
    more, expected = step(plain, images, config(checkpoint_activations=False))
    less, found = step(again, images, told)
    assert less < 0.7 * more
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert all(layer.momentum and layer.num_batches_tracked == 1 for layer in layers_with_statistics(again, told))


def test_without_the_statistics_kept_they_would_move_twice():
    """What the test above would not notice, were there nothing to notice."""
    torch.manual_seed(0)
    module = models.resnet18(num_classes=3)
    checkpoint_activations(module, config())
    _, found = step(module, torch.randn(4, 3, 64, 64), config(checkpoint_activations=False))
    assert found["layer1.0.bn1.num_batches_tracked"] == 2


def test_a_copy_calls_its_own_blocks():
    torch.manual_seed(0)
    module = models.resnet18(num_classes=3)
    checkpoint_activations(module, config())
    average = copy.deepcopy(module).eval()
    with torch.no_grad():
        before = average(torch.ones(1, 3, 32, 32))
        for parameter in module.parameters():
            parameter.zero_()
        assert torch.equal(average(torch.ones(1, 3, 32, 32)), before)


@pytest.mark.parametrize("name", models.list_models(module=models))
def test_all_of_torchvision_with_repeated_blocks_can_do_it(name):
    told = {"name": name, "weights": None, "average_flips": False, "checkpoint_activations": True}
    module = without_values(TorchvisionConfig(family="torchvision", **told), 3)
    if name.startswith(WITHOUT):
        with pytest.raises(InvalidModelError, match=r"model\.checkpoint_activations = true: .* has no blocks"):
            checkpoint_activations(module, config(name))
    else:
        checkpoint_activations(module, config(name))


def test_a_model_of_timm_without_it_is_refused():
    class Refusing(nn.Linear):
        def set_grad_checkpointing(self, enable: bool) -> None:
            assert not enable, "gradient checkpointing not supported"

    with pytest.raises(InvalidModelError, match=r"can't do it \(gradient checkpointing not supported\)"):
        checkpoint_activations(Refusing(2, 2), config())
    module = Refusing(2, 2)
    checkpoint_activations(module, config(checkpoint_activations=False))
    assert layers_with_statistics(module, config(checkpoint_activations=False)) == []
