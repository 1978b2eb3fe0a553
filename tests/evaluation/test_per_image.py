from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from runner.base.errors import StoppedOnRequest
from runner.data.images.transforms import pipeline_of
from runner.data.loader.loader import EvalBatches
from runner.data.sources.synthetic import SyntheticSource
from runner.dist.collectives import single_process
from runner.dist.device import Precision
from runner.evaluation.per_image import EvaluationSplit, Scorer, evaluate_per_image
from runner.trainer.bad_images import BadImages


class Brightness(nn.Module):
    """Image i of the split is grey of value i: class 1 gets its brightness for a logit, class 0 gets 0.1."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.mean(dim=(1, 2, 3))
        return torch.stack([torch.full_like(mean, 0.1), mean], dim=1)


class Scaled(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float() / 255


@pytest.fixture
def parts():
    pool = np.arange(0, 250, 25, dtype=np.uint8)[:, None, None, None].repeat(4, 1).repeat(4, 2).repeat(3, 3)
    source = SyntheticSource(pool, np.array([0, 1] * 5))
    dist = single_process(torch.device("cpu"))
    batches = EvalBatches(
        source, pipeline_of(()), batch_size=4, rank=0, world_size=1, workers=0, pin_memory=False, skips_bad=False
    )
    bad_images = BadImages("data.val", num_images=10, max_fraction=0.5, is_logged=False)
    scorer = Scorer(
        module=Brightness(),
        normalizer=Scaled(),
        dist=dist,
        precision=Precision(name="fp32", reason="as asked"),
        memory_format=torch.contiguous_format,
    )
    return scorer, EvaluationSplit(source=source, batches=batches, bad_images=bad_images)


def test_the_results_of_each_image_are_those_of_the_model(parts):
    scorer, split = parts
    results = evaluate_per_image(scorer, split, stop=SimpleNamespace(received=None), what="a split", line=None)
    brightness = torch.arange(0, 250, 25) / 255
    logits = torch.stack([torch.full((10,), 0.1), brightness], dim=1)
    labels = torch.tensor([0, 1] * 5)
    assert results.images.tolist() == list(range(10))
    assert results.predicted.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(results.probability, logits.softmax(1).max(1).values, rtol=1e-6)
    np.testing.assert_allclose(results.loss, functional.cross_entropy(logits, labels, reduction="none"), rtol=1e-6)
    assert results.counts.correct == int((logits.argmax(1) == labels).sum())


def test_a_signal_ends_the_evaluation_and_names_the_split(parts):
    scorer, split = parts
    with pytest.raises(StoppedOnRequest, match="stopped on SIGUSR1 while evaluating on the val split"):
        evaluate_per_image(scorer, split, stop=SimpleNamespace(received="SIGUSR1"), what="the val split", line=None)
