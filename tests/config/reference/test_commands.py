from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from runner.cli.front_door import COMMANDS, module_of, split_command
from runner.config.reference.commands import EXAMPLES, STOPPABLE, commands_page
from runner.config.reference.keys import read_command_keys
from runner.config.schema.calls import CALLS
from tests.conftest import ROOT
from tests.documented import judge

PAGE = commands_page(COMMANDS)


def section(command: str) -> str:
    return PAGE.partition(f"\n## `{command}`\n")[2].partition("\n## ")[0]


def test_the_file_in_docs_is_up_to_date():
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == PAGE, "run `make docs`"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_that_it_takes(command):
    line = re.search(r"^```\n(python -m runner .+)\n```$", section(command), re.MULTILINE)[1]
    assert split_command(shlex.split(line)[3:])[0] == command
    judge(line)


@pytest.mark.parametrize("command", CALLS)
def test_each_key_of_a_command_is_explained(command):
    for key in read_command_keys(command).variants[0].keys:
        assert re.search(rf"^\| `{re.escape(key.name)}` \| .+ \| .* \| .{{10,}} \|$", section(command), re.MULTILINE)


def test_no_example_is_of_a_command_that_is_gone():
    assert set(EXAMPLES) == set(COMMANDS)


def test_those_that_train_or_say_so_can_be_stopped():
    trains = {"train", "resume", "runs repeat"}
    says = {name for name in COMMANDS if "StoppedOnRequest" in _source(name)}
    assert set(STOPPABLE) == trains | says


def _source(command: str) -> str:
    module = importlib.import_module(module_of(command))
    return Path(module.__file__).read_text(encoding="utf-8")
