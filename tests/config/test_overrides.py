from __future__ import annotations

import pytest

from runner.base.errors import ConfigError
from runner.config.overrides import parsed_override
from tests.composed import compose_jobs


@pytest.mark.parametrize(
    "values",
    [
        *("range(0,1,0)", "range(0.0,1.0,0)", "range(0,1000000000)", "range(0,1,-0.000001)", "range(0,inf)"),
        *("range(nan,1)", "range(0,1,nan)", "shuffle(range(0,100000000))", "sort(range(0,1e300,1e-300))"),
    ],
)
def test_a_range_with_too_many_values_is_refused(values):
    with pytest.raises(ConfigError, match=r"seed: a range needs a step that leads from .*, in at most 100,000"):
        parsed_override(f"++seed={values}")


@pytest.mark.parametrize("values", ["range(0,100000)", "range(1,0,-0.1)", "shuffle(range(3))", "range(5,1,-1)"])
def test_other_ranges_are_parsed(values):
    assert parsed_override(f"++seed={values}").is_range_sweep()


def test_no_sweep_begins_with_such_a_range():
    with pytest.raises(ConfigError, match="at most 100,000 values"):
        compose_jobs(["-m", "seed=shuffle(range(0,100000000))"], lambda job: None)
