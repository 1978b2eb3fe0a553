"""What is done in another way on the CPU gives what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import runner
from runner.config.schema.optimizer import AdamWConfig, OptimizerConfig, SGDConfig
from runner.dist.device import Precision
from runner.optimizer import build_optimizer, named_state
from runner.trainer import on_cpu
from runner.trainer.on_cpu import step_without_copies, weight_gradients_by_product

CPU = torch.device("cpu")
SGD = SGDConfig(
    name="sgd", lr=0.1, lr_scaling="none", momentum=0.9, nesterov=True, weight_decay=0.01, decay_norm_and_bias=True
)
WITHOUT_MOMENTUM = SGDConfig(
    name="sgd", lr=0.1, lr_scaling="none", momentum=0.0, nesterov=False, weight_decay=0.01, decay_norm_and_bias=True
)
ADAMW = AdamWConfig(
    name="adamw", lr=0.1, lr_scaling="none", betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, decay_norm_and_bias=False
)


def by_product(precision: str = "bf16") -> AbstractContextManager[object]:
    return weight_gradients_by_product(CPU, Precision(name=precision, reason=""))


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


@pytest.fixture(autouse=True)
def measured_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "_was_measured_on_such_a_cpu", lambda: True)


@pytest.fixture
def for_few_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "_MIN_WEIGHTS", 0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the weights whose gradient was made by a product."""
    seen: list[torch.Size] = []
    real = on_cpu._weight_gradient

    def noted(images, gradient, shape, stride, padding):
        seen.append(shape)
        return real(images, gradient, shape, stride, padding)

    monkeypatch.setattr(on_cpu, "_weight_gradient", noted)
    return seen


@pytest.mark.parametrize("config", [SGD, WITHOUT_MOMENTUM, ADAMW], ids=["sgd", "without momentum", "adamw"])
def test_steps_without_copies_give_the_same_bits(config: OptimizerConfig) -> None:
    def trained(context: Callable[[], AbstractContextManager[object]]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1, groups=2), nn.Flatten(), nn.Linear(72, 2))
        module = module.to(memory_format=torch.channels_last)
        optimizer = build_optimizer(config, module)
        for _ in range(3):
            module(channels_last(4, 3, 5, 5)).square().sum().backward()
            with context():
                optimizer.step()
            optimizer.zero_grad()
        return [*module.state_dict().values(), *named_state(optimizer, module).values()]

    as_torch_does = trained(nullcontext)
    assert not as_torch_does[0].is_contiguous()
    for one, other in zip(as_torch_does, trained(lambda: step_without_copies(CPU)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("config", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_step_copies_no_gradient(config: OptimizerConfig) -> None:
    """By itself torch does; once it ceases to, `step_without_copies` can go."""
    module = nn.Conv2d(8, 8, 3, bias=False).to(memory_format=torch.channels_last)
    module.weight.grad = torch.ones_like(module.weight)
    optimizer = build_optimizer(config, module)

    def copies(context: AbstractContextManager[object]) -> int:
        with torch.profiler.profile() as profile, context:
            optimizer.step()
        return sum(event.count for event in profile.key_averages() if event.key == "aten::clone")

    assert (copies(nullcontext()), copies(step_without_copies(CPU))) == (1, 0)


def gradients(module: nn.Module, images: torch.Tensor, context: AbstractContextManager[object]) -> list[torch.Tensor]:
    """Of the images and of the parameters; the loss weighs each output differently."""
    images = images.clone(memory_format=torch.preserve_format).requires_grad_()
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16), context:
        result = module(images)
    weights = torch.linspace(-1, 1, result.numel()).view_as(result) if result.numel() else result
    (result.float() * weights).sum().backward()
    return [images.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.usefixtures("for_few_weights")
@pytest.mark.parametrize(
    ("module", "side"),
    [
        (nn.Conv2d(16, 24, 3, padding=1, bias=False), 2),
        (nn.Conv2d(16, 24, 3, padding=1, bias=False), 4),
        (nn.Conv2d(16, 24, 3, padding=1, stride=2, bias=False), 7),
        (nn.Conv2d(5, 7, (3, 2), padding=(2, 0), stride=(2, 3), bias=False), 5),
        (nn.Conv2d(8, 8, 4, bias=False), 4),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False), 4),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_gradients_by_product_are_as_exact(
    module: nn.Conv2d, side: int, memory_format: torch.memory_format, products: list[torch.Size]
) -> None:
    torch.manual_seed(0)
    module = module.to(memory_format=memory_format)
    images = torch.randn(6, module.in_channels, side, side).contiguous(memory_format=memory_format)
    torchs = gradients(module, images, nullcontext())
    assert not products
    ours = gradients(module, images, by_product())
    assert products == [module.weight.shape]
    assert torch.equal(ours[0], torchs[0])
    assert ours[1].stride() == module.weight.stride()
    # The same in float64, from what bf16 has left of images and weights.
    exact_weight = module.weight.detach().bfloat16().double().requires_grad_()
    padded = functional.pad(
        images, module._reversed_padding_repeated_twice, "reflect" if module.padding_mode == "reflect" else "constant"
    )
    result = functional.conv2d(padded.bfloat16().double(), exact_weight, None, module.stride)
    weights = torch.linspace(-1, 1, result.numel()).view_as(result).bfloat16().double()
    (result * weights).sum().backward()
    errors = [((found[1] - exact_weight.grad).norm() / exact_weight.grad.norm()).item() for found in (ours, torchs)]
    assert errors[0] < 0.01
    assert errors[0] < 1.2 * errors[1]


@pytest.mark.usefixtures("for_few_weights")
@pytest.mark.parametrize(
    ("module", "side"),
    [
        (nn.Conv2d(4, 4, 3, padding=1, bias=False), 5),
        (nn.Conv2d(4, 4, 3, padding=1), 2),
        (nn.Conv2d(4, 4, 1, bias=False), 2),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), 2),
        (nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False), 2),
        (nn.Conv2d(4, 4, 3, padding="same", bias=False), 2),
    ],
    ids=["many positions", "bias", "one by one", "groups", "dilation", "padding in words"],
)
def test_other_convolutions_are_left_to_torch(module: nn.Conv2d, side: int, products: list[torch.Size]) -> None:
    images = torch.randn(2, 4, side, side)
    torchs = gradients(module, images, nullcontext())
    ours = gradients(module, images, by_product())
    assert not products
    assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))


@pytest.mark.usefixtures("for_few_weights")
def test_fp32_frozen_weights_and_other_cpus_are_left_to_torch(
    products: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, images = nn.Conv2d(4, 4, 3, bias=False), torch.randn(2, 4, 3, 3)
    with by_product():
        result = module(images)
    result.sum().backward()
    gradients(module, images, by_product("fp32"))
    module.requires_grad_(requires_grad=False)
    frozen = gradients(module, images, by_product())
    assert frozen[0] is not None
    module.requires_grad_()
    monkeypatch.setattr(on_cpu, "_was_measured_on_such_a_cpu", lambda: False)
    gradients(module, images, by_product())
    assert not products


@pytest.mark.usefixtures("for_few_weights")
@pytest.mark.parametrize("arguments", [(None, 1, 1, (1, 1), 1), (None, (1,), (1,), (1, 1), 1), (None, 1), ()])
def test_a_users_own_calls_go_on_as_they_are(arguments: tuple[object, ...], products: list[torch.Size]) -> None:
    images, weight = torch.randn(2, 4, 3, 3), torch.randn(4, 4, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected = functional.conv2d(images, weight, *arguments)
        with by_product():
            result = functional.conv2d(images, weight, *arguments)
            double = functional.conv2d(images.double(), weight.double(), None, (1, 1), (1, 1), (1, 1), 1)
    assert torch.equal(result, expected)
    assert double.dtype is torch.float64
    (result.float().sum() + double.sum()).backward()
    assert not products


@pytest.mark.usefixtures("for_few_weights")
def test_no_images_give_a_gradient_of_zero(products: list[torch.Size]) -> None:
    module = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    of_images, of_weight = gradients(module, torch.empty(0, 4, 2, 2), by_product())
    assert products
    assert of_images.shape == (0, 4, 2, 2)
    assert not of_weight.any()


@pytest.mark.usefixtures("for_few_weights")
def test_what_autograd_can_do_else_it_still_can(products: list[torch.Size]) -> None:
    """A weight that is used twice, recomputed activations, gradients of gradients, torch.func."""
    torch.manual_seed(0)
    module = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    images = torch.randn(3, 4, 2, 2)

    def found(context: AbstractContextManager[object]) -> list[torch.Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), context:
            twice = module(module(images))
            again = checkpoint(module, images, use_reentrant=False)
            (slope,) = torch.autograd.grad(module(images).square().sum(), module.weight, create_graph=True)
            each = torch.func.vmap(lambda image: module(image[None])[0])(images)
        (twice.float().square().sum() + again.float().square().sum() + slope.square().sum() + each.sum()).backward()
        return [module.weight.grad]

    (torchs,), (ours,) = found(nullcontext()), found(by_product())
    assert products
    assert (ours - torchs).norm() < 0.02 * torchs.norm()


@pytest.mark.parametrize(("num_channels", "is_quick"), [(128, False), (256, True)])
def test_few_weights_are_left_to_torch(num_channels: int, is_quick: bool, products: list[torch.Size]) -> None:
    module = nn.Conv2d(128, num_channels, 3, padding=1, bias=False)
    gradients(module, torch.randn(1, 128, 2, 2), by_product())
    assert bool(products) is is_quick


@pytest.mark.parametrize(
    ("overrides", "is_quick"),
    [(("trainer.precision=bf16",), True), (("trainer.precision=fp32",), False)],
    ids=["bf16", "fp32"],
)
def test_a_training_takes_products_where_they_are_quicker(
    tiny, products: list[torch.Size], overrides: tuple[str, ...], is_quick: bool
) -> None:
    runner.fit(runner.load_config(tiny("model=resnet18", "trainer.epochs=1", *overrides)))
    assert bool(products) is is_quick
    assert {size[2:] for size in products} <= {torch.Size((3, 3))}
