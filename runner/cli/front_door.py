"""Finds the command in argv and runs it. The first bare word is the command; the default is `train`."""

from __future__ import annotations

import difflib
import importlib
import keyword
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from runner.base.errors import EXIT_DONE, UsageError
from runner.base.process import gc_paused
from runner.config import conf_of_working_folder, group_options

# Descriptions for --help.
COMMANDS = {
    "init": "write a project of your own, output=FOLDER, its first experiment from a look at your photos",
    "train": "train, evaluate and package an experiment (the default); -m trains one per combination",
    "resume": "continue a run, run=DIR, in its folder from the newest valid checkpoint",
    "evaluate": "measure a model exactly, run=DIR or model=DIR: per class, confusion matrix, calibration; -m: several",
    "predict": "score images with a packaged model, run=DIR or model=DIR, input=FOLDER output=FILE.csv",
    "drift": "say how far images have drifted from those of the validation, model=DIR input=FOLDER",
    "export": "write a run's model as ONNX, torch.export or TorchScript, checked against PyTorch",
    "serve": "answer requests with a packaged model, model=DIR serve.port=8080, until it is stopped",
    "report": "explain a run or a sweep, run=DIR, in one HTML file",
    "runs list": "show the runs under a folder; filter by name, tag or model, sort by a metric or a key",
    "runs diff": "show what differs between two runs, a=DIR b=DIR",
    "runs tag": "change the name, group, notes and tags of a run, run=DIR TAG=VALUE ~TAG",
    "runs compare": "draw the curves of many runs into one HTML file, output=FILE.html",
    "runs watch": "follow a run that is training elsewhere, run=DIR, to its end",
    "runs sync": "send to a run's trackers, run=DIR, what they lack of it",
    "runs delete": "delete a run, run=DIR, unless it can still be resumed",
    "runs prune": "delete old checkpoints of the runs under a folder, keep=N",
    "runs repeat": "train a new run from the config of another, run=DIR",
    "runs environment": "write what rebuilds the environment of a run, run=DIR output=FOLDER",
    "models register": "make the model of a completed run, run=DIR, the next version of a registered model, name=NAME",
    "models list": "show the registered models, with their newest version and aliases",
    "models show": "show the versions of a registered model, name=NAME, or one of them, version=N",
    "models promote": "let an alias name another version, name=NAME alias=ALIAS; if_better_on=DATA: if it is better",
    "models download": "copy a registered version, name=NAME@ALIAS, to a new folder, output=DIR, and check it",
    "validate": "check everything that train would refuse, config and data, without training",
    "dataset check": "decode each image of a data set: damaged files, duplicates, leaks between splits, counts, sizes",
    "dataset import": "turn folders, zip, tar, CSV lists or COCO, input=PATH, into class folders, output=DIR",
    "dataset show": "draw images beside their augmented versions, output=FILE.png",
    "dataset split": "divide images into train, val and test, input=DIR or LIST.csv, without copying them",
    "architectures": "list the names for model.name, pattern='resnet*', with parameters, image size and weights",
    "doctor": "say whether this machine can run an experiment, how fast, and why not",
}
_COMPUTE = frozenset(
    {
        "train",
        "resume",
        "evaluate",
        "predict",
        "drift",
        "serve",
        "export",
        "runs repeat",
        "doctor",
        "init",
        "models promote",
    }
)
_MAX_HELP_COLUMNS = 120


def split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Split arguments into the command and the rest.

    Raises:
        UsageError: the first bare word is no command.
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
    """The module with the function `run` of a command; Python's keywords get an underscore: `dataset.import_`."""
    words = (f"{word}_" if keyword.iskeyword(word) else word for word in command.split())
    return ".".join(("runner.cli.commands", *words))


def _bare_words(argv: Sequence[str]) -> list[int]:
    """Positions of the words that are neither KEY=VALUE, nor a flag, nor the value of a flag."""
    with gc_paused():
        from runner.config.arguments import FLAGS_WITH_VALUE  # noqa: PLC0415 - not needed by --version

    words = []
    is_value = False
    for position, word in enumerate(argv):
        if is_value or word.startswith(("-", "+", "~")) or "=" in word:
            is_value = word in FLAGS_WITH_VALUE and not is_value
        else:
            words.append(position)
    return words


def _unknown(word: str) -> str:
    from runner.config.schema.checks.validation import known_keys  # noqa: PLC0415 - needed for the error message only

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    message = f"{word!r} is neither a command nor KEY=VALUE; commands: {', '.join(COMMANDS)}"
    own = conf_of_working_folder()
    # What is right but for its place comes before what is nearly right: `digits` is near `init`.
    if word in group_options("experiment", [] if own is None else [own]):
        return f"{message}; did you mean experiment={word}?"
    if word in set(known_keys({})):
        return f"{message}; did you mean {word}=VALUE?"
    if close:
        return f"{message}; did you mean {close[0]}?"
    return f"{message}; see python -m runner --help"


def _completed_topics(words: Sequence[str]) -> list[str]:
    """What may stand after `help` in place of the last word, which is typed in part."""
    from runner.config.reference import topics  # noqa: PLC0415

    *before, begun = words
    known = (topic.split() for topic in topics(COMMANDS))
    fitting = [topic[len(before)] for topic in known if topic[: len(before)] == before and len(topic) > len(before)]
    return sorted({word for word in fitting if word.startswith(begun)})


def run(argv: Sequence[str]) -> int:
    """Run a command line.

    Returns:
        The exit code.

    Raises:
        RunnerError: what the command raises; its `exit_code` is then that of the process.
    """
    from runner.base import console  # noqa: PLC0415 - not needed by shell completion

    if "--version" in argv:
        from importlib.metadata import version  # noqa: PLC0415

        console.show(f"runner {version('runner')}")
        return EXIT_DONE
    if {"--shell-completion", "-sc"} & set(argv):
        words = os.environ.get("COMP_LINE", "").split(" ")
        if len(words) > 2 and words[1] in ("help", "--help", "-h"):
            console.show("\n".join(_completed_topics(words[2:])))
            return EXIT_DONE
        if len(words) > 2 and words[1] in COMMANDS:
            del words[1]  # Hydra completes overrides, not commands
        if len(words) > 1 and conf_of_working_folder() is not None:
            from runner.config.config_folder import search_path  # noqa: PLC0415 - imports Hydra

            words[1:1] = search_path([Path("conf")])  # Hydra splits the line at spaces, which a full path may have
        if any(words):
            os.environ["COMP_LINE"] = " ".join(words)
    words = [argv[position] for position in _bare_words(argv)]
    if {"--help", "-h"} & set(argv) or words[:1] == ["help"]:
        width = min(shutil.get_terminal_size().columns, _MAX_HELP_COLUMNS)
        with gc_paused():
            from runner.config.reference import help_page  # noqa: PLC0415

            text = help_page(COMMANDS, words[1:] if words[:1] == ["help"] else words, width)
        console.show_paged(text)
        return EXIT_DONE
    command, arguments = split_command(argv)
    console.set_up()
    if command in _COMPUTE:
        from runner.base.wait_policy import choose_wait_policy  # noqa: PLC0415 - for commands that compute

        choose_wait_policy()
    with gc_paused():
        module = importlib.import_module(module_of(command))
    exit_code: int = module.run(arguments)
    return exit_code
