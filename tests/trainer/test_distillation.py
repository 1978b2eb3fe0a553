"""The teacher's part of the loss against the formula of Hinton et al. 2015."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from runner.config.schema.distill import DistillConfig
from runner.trainer.loss.distillation import Distillation

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]])
SCORES = torch.tensor([[1.0, 1.0, -2.0], [0.5, 4.0, 0.0]])
LABELS = torch.tensor([0, 1])


def distillation(temperature: float = 4.0, weight: float = 0.3) -> Distillation:
    return Distillation(DistillConfig(run=None, temperature=temperature, weight=weight), nn.Identity())


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("class_weight", [None, torch.tensor([2.0, 0.5, 1.0])])
def test_it_is_the_formula(temperature, class_weight):
    p = (SCORES / temperature).softmax(1)
    q = (LOGITS / temperature).softmax(1)
    divergence = (p * (p.log() - q.log())).sum(1) * temperature**2
    weight = torch.ones(2) if class_weight is None else class_weight[LABELS]
    label_loss = functional.cross_entropy(LOGITS, LABELS, reduction="sum")
    found = distillation(temperature)(label_loss, LOGITS, SCORES, LABELS, class_weight)
    torch.testing.assert_close(found, 0.7 * label_loss + 0.3 * (weight * divergence).sum())


def test_shares_of_classes_weigh_as_their_mean():
    weight, shares = torch.tensor([2.0, 0.5, 1.0]), torch.tensor([[0.3, 0.7, 0.0], [0.0, 0.5, 0.5]])
    once = [
        distillation()(torch.zeros(()), LOGITS[i : i + 1], SCORES[i : i + 1], LABELS[i : i + 1], None) for i in (0, 1)
    ]
    found = distillation()(torch.zeros(()), LOGITS, SCORES, shares, weight)
    torch.testing.assert_close(found, once[0] * 0.95 + once[1] * 0.75)


def test_a_hot_teacher_asks_for_the_logits_themselves():
    """At a high temperature the gradient is the difference of the centred logits, divided by the number of classes."""
    logits = LOGITS.clone().requires_grad_()
    distillation(temperature=1e3, weight=1.0)(torch.zeros(()), logits, SCORES, LABELS, None).backward()
    difference = (LOGITS - LOGITS.mean(1, keepdim=True)) - (SCORES - SCORES.mean(1, keepdim=True))
    torch.testing.assert_close(logits.grad, difference / 3, rtol=0.01, atol=0.01)


def test_without_good_images_there_are_gradients_of_zero():
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = distillation()(logits.sum(), logits, torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), None)
    loss.backward()
    assert loss == 0


def test_the_teacher_does_not_learn_and_draws_nothing():
    teacher = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    images = torch.randn(5, 1, 2, 2)
    taught = Distillation(DistillConfig(run=None, temperature=1, weight=1), teacher)
    assert torch.equal(taught.scores(images), taught.scores(images))
    assert not taught.scores(images).requires_grad
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
