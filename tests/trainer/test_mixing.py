from __future__ import annotations

import pytest
import torch

import runner
from runner.base.errors import ConfigError
from runner.trainer.loss.mixing import Mixing, build_mixing

NUM_CLASSES = 5
LABELS = torch.arange(4)
# Each image of a value of its own, from which the pixels tell what they come from.
IMAGES = torch.tensor([1.0, 10.0, 100.0, 1000.0]).view(4, 1, 1, 1).expand(4, 3, 16, 16)


def mixing_of(*overrides: str) -> Mixing:
    mixing = build_mixing(runner.load_config(overrides).trainer, NUM_CLASSES)
    assert mixing is not None
    return mixing


def test_by_default_nothing_is_mixed():
    assert build_mixing(runner.load_config([]).trainer, NUM_CLASSES) is None


@pytest.mark.parametrize("seed", range(4))
def test_mixup_adds_two_images_in_the_shares_of_their_classes(seed):
    torch.manual_seed(seed)
    images, shares = mixing_of("trainer.mixup_alpha=1")(IMAGES, LABELS)
    assert shares.shape == (4, NUM_CLASSES)
    own = shares[range(4), LABELS]
    before = shares[range(4), LABELS.roll(1)]
    torch.testing.assert_close(own + before, torch.ones(4))
    assert 0 < own[0] < 1
    expected = own.view(4, 1, 1, 1) * IMAGES + before.view(4, 1, 1, 1) * IMAGES.roll(1, 0)
    torch.testing.assert_close(images, expected)


@pytest.mark.parametrize("seed", range(4))
def test_cutmix_takes_each_pixel_from_one_of_two_images_in_the_shares_of_their_classes(seed):
    torch.manual_seed(seed)
    images, shares = mixing_of("trainer.cutmix_alpha=1")(IMAGES, LABELS)
    is_own = images == IMAGES
    assert torch.equal(is_own | (images == IMAGES.roll(1, 0)), torch.ones_like(is_own))
    torch.testing.assert_close(shares[range(4), LABELS], is_own.float().mean((1, 2, 3)))


def test_with_both_each_batch_gets_one_of_them_by_lot():
    mixing = mixing_of("trainer.mixup_alpha=1", "trainer.cutmix_alpha=1")
    is_cut = set()
    for seed in range(20):
        torch.manual_seed(seed)
        images, _ = mixing(IMAGES, LABELS)
        is_cut.add(bool(torch.isin(images, IMAGES).all()))
    assert is_cut == {False, True}


def test_the_same_seed_mixes_the_same_way():
    mixing = mixing_of("trainer.mixup_alpha=0.2", "trainer.cutmix_alpha=1")
    torch.manual_seed(3)
    first = mixing(IMAGES, LABELS)
    torch.manual_seed(3)
    assert all(torch.equal(one, other) for one, other in zip(first, mixing(IMAGES, LABELS), strict=True))


def test_a_single_image_stays_as_it_is():
    images, labels = mixing_of("trainer.mixup_alpha=1")(IMAGES[:1], LABELS[:1])
    assert torch.equal(images, IMAGES[:1])
    assert torch.equal(labels, LABELS[:1])


def test_what_stands_in_for_bad_images_is_not_mixed():
    images, labels = mixing_of("trainer.mixup_alpha=1")(IMAGES[:2], LABELS[:1])
    assert torch.equal(images, IMAGES[:2])
    assert torch.equal(labels, LABELS[:1])


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.mixup_alpha = 0"):
        runner.load_config(["trainer.mixup_alpha=0"])
