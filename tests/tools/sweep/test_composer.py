from __future__ import annotations

import re

import pytest

from runner.library import load_config
from runner.tools.sweep.composer import trial_identity


def identity(*overrides: str, varied: tuple[str, ...] = ()) -> str:
    return trial_identity(load_config(["data=synthetic", *overrides]).model_dump(mode="json"), varied)


@pytest.mark.parametrize(
    "override",
    [
        "output_dir=elsewhere",
        "sweep.parallel=2",
        "sweep.dir=x",
        "data.workers=3",
        "trainer.keep=5",
        "dist.max_restarts=2",
    ],
)
def test_keys_without_effect_on_the_result_are_left_out(override):
    assert identity(override) == identity()


@pytest.mark.parametrize(
    "override", ["seed=2", "optimizer.lr=0.02", "trainer.epochs=7", "dist.procs_per_node=2", "trainer.monitor=val_loss"]
)
def test_keys_with_an_effect_count(override):
    assert identity(override) != identity()


def test_a_key_that_varies_counts_whatever_it_is():
    assert identity("data.workers=3", varied=("data.workers",)) != identity(varied=("data.workers",))


def test_the_identity_is_a_sha256():
    assert re.fullmatch("[0-9a-f]{64}", identity())
