"""From argv to a command. The first bare word is the command; none means `train`."""

from __future__ import annotations

import difflib
import importlib
import keyword
import os
import shutil
from collections.abc import Sequence

from runner.base.errors import EXIT_DONE, UsageError
from runner.base.process import collection_paused

# One line each, for --help. A command `x` lives in runner/cli/commands/x.py, `x y` in runner/cli/commands/x/y.py.
COMMANDS = {
    "train": "train, evaluate and package an experiment (the default); -m trains one per combination",
    "resume": "go on with a run, run=DIR, in its folder from the newest valid checkpoint",
    "evaluate": "measure a run's model exactly, run=DIR: per class, confusion matrix, calibration; -m for several",
    "predict": "score images with a packaged model, run=DIR or model=DIR, input=FOLDER output=FILE.csv",
    "export": "write a run's model as ONNX, torch.export or TorchScript, checked against PyTorch",
    "report": "explain a run or a sweep, run=DIR, in one HTML file",
    "runs list": "show the runs under a folder, newest first",
    "runs diff": "show what differs between two runs, a=DIR b=DIR",
    "runs repeat": "train a new run from the config of another, run=DIR",
    "validate": "check everything that train would refuse, config and data, without training",
    "dataset check": "decode each image of a data set: damaged files, duplicates, leaks between splits, counts, sizes",
    "dataset import": "turn folders, zip, tar, CSV lists or COCO, input=PATH, into class folders, output=DIR",
    "dataset show": "draw images beside what training makes of them, output=FILE.png",
    "dataset split": "share images among train, val and test, input=DIR or LIST.csv, without copying them",
    "doctor": "say whether this machine can run an experiment, how fast, and why not",
}
_MAX_HELP_COLUMNS = 120


def split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Take the command off the arguments.

    Returns:
        The command and the remaining arguments.

    Raises:
        UsageError: when the first bare word is no command.
    """
    words = _bare_words(argv)
    if not words:
        return "train", list(argv)
    word = argv[words[0]]
    follow_ups = [command for command in COMMANDS if command.startswith(f"{word} ")]
    if follow_ups:
        command = f"{word} {argv[words[1]]}" if len(words) > 1 else word
        if command not in COMMANDS:
            raise UsageError(f"{command!r} is no command; there are: {', '.join(follow_ups)}")
        return command, [item for position, item in enumerate(argv) if position not in words[:2]]
    if word not in COMMANDS:
        raise UsageError(_unknown(word))
    return word, [item for position, item in enumerate(argv) if position != words[0]]


def module_of(command: str) -> str:
    """The module whose `run` carries out a command; a word that Python keeps for itself has an underscore there."""
    words = (f"{word}_" if keyword.iskeyword(word) else word for word in command.split())
    return ".".join(("runner.cli.commands", *words))


def _bare_words(argv: Sequence[str]) -> list[int]:
    """Positions of the words that are neither KEY=VALUE nor a flag nor the value of one."""
    with collection_paused():
        from runner.config.arguments import FLAGS_WITH_VALUE  # noqa: PLC0415 - --version needs none of it

    words = []
    is_value = False
    for position, word in enumerate(argv):
        if is_value or word.startswith(("-", "+", "~")) or "=" in word:
            is_value = word in FLAGS_WITH_VALUE and not is_value
        else:
            words.append(position)
    return words


def _unknown(word: str) -> str:
    from runner.config import group_options  # noqa: PLC0415 - only the unlucky pay for it
    from runner.config.schema.judge import known_keys  # noqa: PLC0415

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    message = f"{word!r} is neither a command nor KEY=VALUE; commands: {', '.join(COMMANDS)}"
    if close:
        return f"{message}; did you mean {close[0]}?"
    if word in group_options("experiment"):
        return f"{message}; did you mean experiment={word}?"
    if word in set(known_keys({})):
        return f"{message}; did you mean {word}=VALUE?"
    return f"{message}; see python -m runner --help"


def _hide_command_from_completion() -> None:
    """Hydra completes overrides; it must not see the command that stands before them."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split(" ")
    if len(words) > 2 and words[1] in COMMANDS:
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])


def run(argv: Sequence[str]) -> int:
    """Carry out a command line.

    Returns:
        The exit code of a command that ended well.

    Raises:
        RunnerError: with its own exit code.
    """
    from runner.base import console  # noqa: PLC0415 - completion of a shell needs none of it

    if "--version" in argv:
        from importlib.metadata import version  # noqa: PLC0415

        console.show(f"runner {version('runner')}")
        return EXIT_DONE
    if {"--shell-completion", "-sc"} & set(argv):
        _hide_command_from_completion()
    command, arguments = split_command(argv)
    if "--help" in arguments or "-h" in arguments:
        width = min(shutil.get_terminal_size().columns, _MAX_HELP_COLUMNS)
        with collection_paused():
            from runner.config.reference import help_text  # noqa: PLC0415

            text = help_text(COMMANDS, command if _bare_words(argv) else None, width)
        console.show(text)
        return EXIT_DONE
    console.set_up()
    with collection_paused():
        module = importlib.import_module(module_of(command))
    exit_code: int = module.run(arguments)
    return exit_code
