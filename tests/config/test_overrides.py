from __future__ import annotations

import pytest

from runner.base.errors import ConfigError, UsageError
from runner.cli.call import read_own
from runner.config.compose import compose_one
from runner.config.overrides import parsed_override
from runner.config.schema.calls import RunsListCall
from tests.composed import compose_jobs


@pytest.mark.parametrize(
    "values",
    [
        *("range(0,1,0)", "range(0.0,1.0,0)", "range(0,1000000000)", "range(0,1,-0.000001)", "range(0,inf)"),
        *("range(nan,1)", "range(0,1,nan)", "shuffle(range(0,100000000))", "sort(range(0,1e300,1e-300))"),
    ],
)
def test_a_range_that_no_sweep_could_walk_through_is_refused(values):
    with pytest.raises(ConfigError, match=r"seed: a range goes in steps that are not 0, and has at most 100,000"):
        parsed_override(f"++seed={values}")


@pytest.mark.parametrize("values", ["range(0,100000)", "range(1,0,-0.1)", "shuffle(range(3))", "range(5,1)"])
def test_other_ranges_are_taken(values):
    assert parsed_override(f"++seed={values}").is_range_sweep()


def test_no_sweep_begins_with_such_a_range():
    with pytest.raises(ConfigError, match="at most 100,000 values"):
        compose_jobs(["-m", "seed=shuffle(range(0,100000000))"], lambda job: None)


def test_completion_is_for_shells(monkeypatch):
    monkeypatch.delenv("COMP_LINE", raising=False)
    with pytest.raises(UsageError, match="COMP_LINE"):
        compose_jobs(["-sc", "query=bash"], lambda job: None)


@pytest.mark.parametrize("key", ["trainer.epochs", "data", "experiment", "+nosuch"])
def test_a_number_of_too_many_digits_is_told_with_its_key(key):
    with pytest.raises(ConfigError, match=rf"^{key.lstrip('+')}: this value can't be read: .* too many digits"):
        compose_one([f"{key}={'9' * 5_000}"])
    with pytest.raises(ConfigError, match=r"^limit: this value can't be read: .* too many digits"):
        read_own("runs list", RunsListCall, [f"limit={'9' * 5_000}"])


def test_what_hydra_does_not_expect_is_told_with_its_key():
    typed = ["seed=1,2", "hydra/sweeper=basic", "+hydra.sweeper.params={seed:{a:1}}"]
    with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.params: "):
        compose_jobs(typed, lambda _: None)
