import importlib

import pytest

from runner.errors import UsageError
from runner.front_door import COMMANDS, split_command


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
    assert callable(importlib.import_module(f"runner.commands.{command.replace(' ', '_')}").run)
    assert split_command([*command.split(), "a=1"]) == (command, ["a=1"])
