"""Flags are a closed list, config folders are folders, and overrides have a largest size."""

from __future__ import annotations

import pytest

from runner.base.errors import ConfigError, UsageError
from runner.cli import front_door
from runner.cli.call import read_own
from runner.config.compose import compose_one
from runner.config.schema.calls.of_experiments import InitCall
from tests.composed import compose_jobs, refusal, refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["install=csh"], "there is no shell 'csh' to complete for; there are bash, fish and zsh"),
        ([], "one of install=SHELL, uninstall=SHELL and query=SHELL"),
        (["seed=3"], "one of install=SHELL"),
    ],
)
def test_a_completion_for_no_known_shell_is_refused(arguments, told):
    assert told in str(refusal("--shell-completion", *arguments))
    assert "plugin" not in str(refusal("--shell-completion", *arguments))


@pytest.mark.parametrize("read", [compose_one, lambda argv: read_own("init", InitCall, argv)])
def test_a_name_that_is_no_utf8_is_refused(read):
    with pytest.raises(ConfigError, match=r"'output=ph\\xff' is no UTF-8 text; rename"):
        read(["output=ph\udcff"])


@pytest.mark.parametrize(
    "flag",
    [
        "--run",
        "--resolve",
        "--experimental-rerun",
        "--experimental-reru=x",
        "--config-path=/x",
        "-cp",
        "--config-name=x",
        "-cn",
        "--multi",
    ],
)
def test_flags_that_run_or_replace_are_refused_also_abbreviated(flag):
    with pytest.raises(UsageError, match=r"not accepted|no flag|give it too"):
        compose_one([flag, "x"])


@pytest.mark.parametrize("place", ["pkg://os", "https://example.org/x", "structured://x"])
def test_configs_are_read_from_folders_only(place):
    assert "folders only" in refused("--config-dir", place)
    assert "folders only" in refused(f"hydra.searchpath=['{place}']")


@pytest.mark.parametrize(
    "override",
    ["seed=" + "[" * 5_000, "seed=" + "1" * 400, "trainer.epochs=" + "9" * 400, "seed=" + "x" * 200_000, "seed=a\0b"],
    ids=["brackets", "digits of seed", "digits of epochs", "long", "NUL"],
)
def test_a_value_that_is_too_large_is_refused_with_a_short_message(override):
    assert len(refused(override)) < 2_000


@pytest.mark.parametrize("line", [None, "", "  "])
def test_completion_is_for_shells(monkeypatch, line):
    monkeypatch.delenv("COMP_LINE", raising=False)
    if line is not None:
        monkeypatch.setenv("COMP_LINE", line)
    with pytest.raises(UsageError, match="COMP_LINE"):
        compose_jobs(["-sc", "query=bash"], lambda job: None)
    with pytest.raises(UsageError, match="COMP_LINE"):
        front_door.run(["-sc", "query=bash"])
