from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import runner
from runner.base.errors import ConfigError
from runner.config.schema.trainer import TrainerConfig
from runner.trainer.loss import losses
from runner.trainer.loss.losses import build_loss

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -2.0]])
LABELS = torch.tensor([0, 2])
WEIGHT = torch.tensor([0.5, 1.0, 3.0])


def trainer(**changes: object) -> TrainerConfig:
    return runner.load_config([]).trainer.model_copy(update=changes)


def users(monkeypatch: pytest.MonkeyPatch, function: object, **changes: object) -> losses.SumOfLosses:
    monkeypatch.setattr(losses, "call_part", lambda *_: function)
    return build_loss(trainer(loss="mine", **changes))


def per_image(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("are_mixed", [False, True])
def test_a_users_cross_entropy_is_torchs(monkeypatch, smoothing, are_mixed):
    targets = torch.tensor([[0.3, 0.7, 0.0], [0.0, 0.0, 1.0]]) if are_mixed else LABELS
    found = users(monkeypatch, per_image, label_smoothing=smoothing)(LOGITS, targets, None)
    expected = functional.cross_entropy(LOGITS, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(build_loss(trainer(label_smoothing=smoothing))(LOGITS, targets, None), expected)


def test_classes_are_weighted_as_torch_weights_them(monkeypatch):
    expected = functional.cross_entropy(LOGITS, LABELS, weight=WEIGHT, reduction="sum")
    torch.testing.assert_close(users(monkeypatch, per_image)(LOGITS, LABELS, WEIGHT), expected)


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("are_mixed", [False, True])
def test_binary_cross_entropy_is_timms(threshold, smoothing, are_mixed):
    """timm's loss is the mean over the batch, and leaves mixed targets without smoothing."""
    reference = pytest.importorskip("timm.loss").BinaryCrossEntropy(smoothing, threshold)
    mixed = torch.tensor([[0.3, 0.7, 0.0], [0.15, 0.0, 0.85]])
    expected = reference(LOGITS, mixed * (1 - smoothing) + smoothing / 3 if are_mixed else LABELS) * 2
    config = trainer(loss="binary_cross_entropy", target_threshold=threshold, label_smoothing=smoothing)
    torch.testing.assert_close(build_loss(config)(LOGITS, mixed if are_mixed else LABELS, None), expected)


def test_a_batch_without_good_images_has_no_loss_but_gradients(monkeypatch):
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = users(monkeypatch, per_image)(logits, torch.zeros(0, dtype=torch.int64), None)
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (3, "this loss returned a int; it must return a function"),
        (lambda logits, targets: 1.0, "this loss returned a float for 2 images"),
        (lambda logits, targets: per_image(logits, targets).mean(), r"returned shape \(\) for 2 images"),
        (lambda logits, targets: logits[5], "this loss failed: IndexError"),
    ],
)
def test_a_loss_that_is_none_is_named(monkeypatch, function, told):
    with pytest.raises(ConfigError, match=rf"trainer\.loss = 'mine': .*{told}"):
        users(monkeypatch, function)(LOGITS, LABELS, None)
