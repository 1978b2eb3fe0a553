from __future__ import annotations

import pytest
from pydantic import BaseModel

from runner.config.schema import base as effect
from runner.config.schema.checks import effects as derived
from runner.config.schema.checks.effects import effect_of, effects, keys_as_typed


def test_each_key_has_a_mark_and_a_description():
    marks = effects()
    assert len(marks) > 120
    assert marks["seed"].on_resume == "never"
    assert effect_of("data.normalize.mean").at_evaluation == "model"
    assert effect_of("dist.slurm.setup") == effect.NONE
    assert effect_of("nobody.knows.this") == effect.RESULT, "what is not known counts"


def test_a_key_without_a_mark_is_found():
    class Section(BaseModel):
        rate: float

    with pytest.raises(AssertionError, match=r"optimizer\.rate has no mark"):
        list(derived._marked(Section, "optimizer.", None))
    assert list(derived._marked(Section, "optimizer.", effect.TRAINING)) == [("optimizer.rate", effect.TRAINING)]


@pytest.mark.parametrize("key", ["data.index_cache", "trainer.grace_seconds", "data.workers", "output_dir"])
def test_a_key_that_may_change_on_resume_makes_no_other_trial(key):
    assert effect_of(key).on_resume == "free"
    assert not effect_of(key).tells_trials_apart


def test_paths_are_taken_as_they_are_typed():
    from runner.config.schema import Config

    assert {"data.root", "output_dir", "sweep.dir", "model.weights"} <= set(keys_as_typed(Config))
    assert "model.name" not in set(keys_as_typed(Config))
