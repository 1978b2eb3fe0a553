import importlib
import re

import pytest

from runner.base.errors import UsageError
from runner.cli import front_door
from runner.cli.commands import train
from runner.cli.front_door import COMMANDS, split_command
from runner.config.arguments import read_command_line


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ("train", [])),
        (["model=resnet50"], ("train", ["model=resnet50"])),
        (["train", "model=resnet50"], ("train", ["model=resnet50"])),
        (["validate"], ("validate", [])),
        (["-m", "validate", "a=1"], ("validate", ["-m", "a=1"])),
        (["--config-dir", "validate", "experiment=x"], ("train", ["--config-dir", "validate", "experiment=x"])),
        (["--cfg", "job", "train"], ("train", ["--cfg", "job"])),
        (["~optimizer", "+a=b"], ("train", ["~optimizer", "+a=b"])),
    ],
)
def test_the_first_bare_word_is_the_command(argv, expected):
    assert split_command(argv) == expected


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["validat"], "did you mean validate?"),
        (["model=resnet50", "digits"], "did you mean experiment=digits?"),
        (["trainer.epochs", "5"], "did you mean trainer.epochs=VALUE?"),
        (["zzz"], "see python -m runner --help"),
    ],
)
def test_another_bare_word_is_refused_with_a_hint(argv, hint):
    with pytest.raises(UsageError) as caught:
        split_command(argv)
    assert hint in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_module_of_its_name(command):
    assert callable(importlib.import_module(front_door.module_of(command)).run)
    assert split_command([*command.split(), "a=1"]) == (command, ["a=1"])


@pytest.mark.parametrize(
    ("argv", "first"),
    [
        (["a=1", "-m", "b=2,3"], ["-m", "a=1", "b=2,3"]),
        (["a=1", "b=2,3", "--multirun"], ["--multirun", "a=1", "b=2,3"]),
        (["~a", "--config-dir", "/tmp", "train", "+b=2", "-m"], ["--config-dir", "/tmp", "-m", "~a", "+b=2"]),
        (["a=1", "--config-dir=/tmp", "b=2", "--cfg", "job"], ["--config-dir=/tmp", "--cfg", "job", "a=1", "b=2"]),
    ],
)
def test_flags_may_stand_anywhere(monkeypatch, argv, first):
    given: list[str] = []
    monkeypatch.setattr(train, "run", lambda arguments: given.extend(arguments) or 0)
    assert front_door.run(argv) == 0
    assert read_command_line(given) == read_command_line(first)


@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "trainer.epochs=1,2", "data=synthetic"],
        ["trainer.epochs=1,2", "-m", "data=synthetic"],
        ["trainer.epochs=1,2", "data=synthetic", "--multirun"],
    ],
)
@pytest.mark.parametrize("command", [["validate"], ["train", "sweep.dry_run=true"]])
def test_so_do_they_in_commands_that_take_several(capsys, command, argv):
    assert front_door.run([*command, *argv]) == 0
    assert len(re.findall("(?m)^valid:|trainer.epochs=[12]", capsys.readouterr().out)) == 2


@pytest.mark.parametrize("flag", ["--config-name", "-cp", "--experimental-rerun", "--config-dir"])
def test_the_value_of_a_flag_is_no_command(flag):
    assert split_command([flag, "nosuch", "a=1"]) == ("train", [flag, "nosuch", "a=1"])


def test_overrides_on_both_sides_of_m_are_one_sweep(run_cli):
    done = run_cli("validate", "data=digits", "-m", "optimizer.lr=0.1,-1")
    assert done.returncode == 2
    assert "optimizer.lr = -1: must be greater than 0" in done.stderr
    assert "usage:" not in done.stderr
