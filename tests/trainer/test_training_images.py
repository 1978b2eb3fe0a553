"""How much each image counts, and that the images of an epoch are those that its seed asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from runner.base.errors import CheckpointError
from runner.base.keyed_random import digest_of_samples
from runner.dist.device import Precision
from runner.run.checkpoint import Checkpoint
from runner.trainer.meter import Totals
from runner.trainer.progress import Progress
from runner.trainer.training_images import TrainingImages, Weighting
from tests.trainer.test_waits import trainer_on

PROGRESS = Progress(epoch=1, position=16, step=7)


@pytest.fixture
def images(tiny, tmp_path) -> TrainingImages:
    return trainer_on(torch.device("cpu"), Precision(name="fp32", reason=""), tiny(), tmp_path).images


def counted(images: TrainingImages) -> Totals:
    ids = images.train_batches.next_ids(PROGRESS.epoch, 0, PROGRESS.position)
    return Totals(count=15, skipped=1, samples_digest=digest_of_samples(0, ids))


def checkpoint(images: TrainingImages) -> Checkpoint:
    return Checkpoint(name="0001-00000007", state={**images.capture(PROGRESS), "meter": {"skipped": 1}}, tensors={})


def test_an_epoch_continues_with_the_same_images(images):
    images.restore(checkpoint(images), PROGRESS, counted(images))
    assert images.bad_train.num_in_epoch == 1


def test_other_images_so_far_are_a_damage(images):
    for wrong in (replace(counted(images), count=14), replace(counted(images), samples_digest=1)):
        with pytest.raises(CheckpointError, match="0001-00000007 is damaged: the images that it counts"):
            images.restore(checkpoint(images), PROGRESS, wrong)


def test_other_images_from_here_on_are_refused(images):
    other = checkpoint(images)
    other.state["next_ids_digest"] += 1
    with pytest.raises(CheckpointError, match="another seed or another order of images"):
        images.restore(other, PROGRESS, None)
    other.state["data_fingerprint"] = "of other data, as the user has said"
    images.restore(other, PROGRESS, None)


def test_totals_of_other_images_are_noticed(images):
    images.check_totals(counted(images), PROGRESS)
    with pytest.raises(AssertionError, match="15 images were asked for in this epoch, not 16"):
        images.check_totals(replace(counted(images), skipped=0), PROGRESS)
    with pytest.raises(AssertionError, match="other images were used"):
        images.check_totals(replace(counted(images), samples_digest=1), PROGRESS)


@dataclass
class Source:
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Batches:
    source: Source
    order: np.ndarray

    def next_ids(self, epoch: int, start: int, number: int) -> np.ndarray:
        return self.order[start : start + number]


def test_weights_follow_the_order_of_the_epoch():
    batches = Batches(Source(np.array([0, 1, 1, 0])), np.array([2, 0, 3, 1]))
    weighting = Weighting(batches, np.array([1.0, 10.0]), torch.device("cpu"))
    weighting.begin_epoch(0)
    assert [weighting.of_positions(start, start + 1) for start in range(4)] == [10, 1, 1, 10]
    assert weighting.of_positions(0, 3) == 12
    assert weighting.of_images([0, 1, 2]) == 21
    assert weighting.per_class.tolist() == [1, 10]


def test_without_weights_all_images_count_alike():
    weighting = Weighting(Batches(Source(np.arange(4)), np.arange(4)), None, torch.device("cpu"))
    weighting.begin_epoch(0)
    assert (weighting.of_positions(1, 4), weighting.of_images([0, 3]), weighting.per_class) == (3, 2, None)
