from __future__ import annotations

import pytest

from runner.library import load_config
from runner.tools.sweep.composer import identity_of

BASE = load_config(["data=synthetic"])


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
def test_what_has_no_effect_on_the_result_does_not_count(override):
    assert identity_of(load_config(["data=synthetic", override])) == identity_of(BASE)


@pytest.mark.parametrize(
    "override", ["seed=2", "optimizer.lr=0.02", "trainer.epochs=7", "dist.procs_per_node=2", "trainer.monitor=val_loss"]
)
def test_what_has_an_effect_counts(override):
    assert identity_of(load_config(["data=synthetic", override])) != identity_of(BASE)


def test_a_key_that_varies_counts_whatever_it_is():
    more = load_config(["data=synthetic", "data.workers=3"])
    assert identity_of(more, ["data.workers"]) != identity_of(BASE, ["data.workers"])


def test_it_is_a_sha256_and_the_same_again():
    assert len(identity_of(BASE)) == 64
    assert identity_of(load_config(["data=synthetic"])) == identity_of(BASE)
