"""Exceptions of Hydra become problems with the key they are about."""

from __future__ import annotations

import pytest

from runner.base.errors import ConfigError
from runner.cli.call import read_own
from runner.config.compose import compose_one
from runner.config.schema.calls.of_runs import RunsListCall
from tests.composed import compose_jobs


@pytest.mark.parametrize("key", ["trainer.epochs", "data", "experiment", "+nosuch"])
def test_the_error_for_too_many_digits_names_the_key(key):
    with pytest.raises(ConfigError, match=rf"^{key.lstrip('+')}: this value can't be read: .* too many digits"):
        compose_one([f"{key}={'9' * 5_000}"])
    with pytest.raises(ConfigError, match=r"^limit: this value can't be read: .* too many digits"):
        read_own("runs list", RunsListCall, [f"limit={'9' * 5_000}"])


def test_an_exception_that_hydra_does_not_expect_is_reported_with_its_key():
    typed = ["seed=1,2", "hydra/sweeper=basic", "+hydra.sweeper.params={seed:{a:1}}"]
    with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.params: "):
        compose_jobs(typed, lambda _: None)
