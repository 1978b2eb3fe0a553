"""The pages of the help: the first one, which fits on a screen, and one for each command, group and key."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.base.errors import UsageError
from runner.config.reference.help import (
    experiments,
    experiments_block,
    flags_block,
    group_block,
    groups_block,
    help_text,
    key_rows,
    lines,
    losses_block,
    table,
    transforms_block,
    usage,
)
from runner.config.reference.keys import read_groups

# In the words of somebody who has photos and has not read anything yet.
_FIRST_COMMANDS = {
    "dataset import": "make a data set of folders, zip, tar, CSV or COCO",
    "validate": "check config and data as train does, without training",
    "train": "train, evaluate and package; -m trains several",
    "resume": "continue a run that was stopped or killed",
    "predict": "score images with a trained model",
}
_PAGES = {
    "--help COMMAND": "its keys; also COMMAND --help, help COMMAND",
    "--help GROUP": "options and keys; one key: --help trainer.epochs",
    "--help flags": "-m for sweeps, --config-dir, shell completion …",
    "--help transforms": "what data.train_transforms may have",
    "--help all": "everything",
}
_LEFT_WIDTH = 20
_MAX_NAMED = 3
_MAX_EXPERIMENTS = 8


def help_page(commands: Mapping[str, str], words: Sequence[str], width: int) -> str:
    """The pages that these words ask for, one below the other; the first page without words.

    Args:
        commands: all commands, each with a description of one line.
        words: names of pages, see :func:`topics`.
        width: columns of the terminal.

    Raises:
        UsageError: there is no such page; the message has the nearest names.
    """
    if not words:
        return _first_page(commands, width)
    return "\n\n\n".join(_page(commands, topic, width) for topic in _joined(commands, words))


def topics(commands: Iterable[str]) -> list[str]:
    """The names of all pages."""
    general, *groups = read_groups()
    names = ["all", "flags", "experiment", "keys", "transforms", *commands, *(group.name for group in groups)]
    keys = (key.name for group in (general, *groups) for variant in group.variants for key in variant.keys)
    return list(dict.fromkeys([*names, *(name.split()[0] for name in commands), *keys]))


def _joined(commands: Iterable[str], words: Sequence[str]) -> Iterator[str]:
    """The words, of which two may be one command."""
    rest = list(words)
    while rest:
        length = 2 if " ".join(rest[:2]) in commands else 1
        yield " ".join(rest[:length])
        del rest[:length]


def _page(commands: Mapping[str, str], topic: str, width: int) -> str:
    blocks = {"flags": flags_block, "experiment": experiments_block, "transforms": transforms_block}
    if topic in blocks:
        return blocks[topic](width)
    if topic == "all" or topic in commands:
        return help_text(commands, None if topic == "all" else topic, width)
    below = {name: about for name, about in commands.items() if name.startswith(f"{topic} ")}
    if below:
        return table(f"Commands of {topic}; see --help {next(iter(below))} and so on", below.items(), width)
    general, *groups = read_groups()
    if topic == "keys":
        return lines("General keys (KEY=VALUE, with the default)", key_rows(general, general.variants, width))
    found = next((group for group in groups if group.name == topic), None)
    page = group_block(found, width) if found is not None else _key_page(commands, topic, width)
    own = losses_block(width) if topic in ("trainer", "trainer.loss", "trainer.loss_arguments") else ""
    return f"{page}\n\n{own}" if own else page


def _key_page(commands: Mapping[str, str], key: str, width: int) -> str:
    """One key, or a section of keys within a group."""
    for group in read_groups():
        kept = tuple(
            replace(variant, keys=tuple(item for item in variant.keys if f"{item.name}.".startswith(f"{key}.")))
            for variant in group.variants
        )
        if any(variant.keys for variant in kept):
            where = f"{group.name}: {group.description}" if group.name else "A general key"
            return lines(where, key_rows(group, tuple(variant for variant in kept if variant.keys), width))
    raise UsageError(_unknown(commands, key))


def _unknown(commands: Iterable[str], topic: str) -> str:
    message = f"there is no help on {topic!r}"
    for group in read_groups():
        if group.name and any(topic in variant.options for variant in group.variants):
            return f"{message}, an option: {group.name}={topic}; see --help {group.name}"
    known = topics(commands)
    by_last = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(topic, known, n=_MAX_NAMED)
    close += [by_last[name] for name in difflib.get_close_matches(topic.rpartition(".")[2], by_last, n=_MAX_NAMED)]
    if close:
        return f"{message}; did you mean {', '.join(list(dict.fromkeys(close))[:_MAX_NAMED])}?"
    pages = [name for name in known if "." not in name]
    return f"{message}; there is help on {', '.join(pages)}, and on each key, such as trainer.epochs"


def _families(names: Sequence[str]) -> Iterator[str]:
    """Commands in order; those of two words by the first one, once."""
    for first, family in itertools.groupby(names, key=lambda name: name.split()[0]):
        yield f"{first} …" if any(" " in name for name in family) else first


def _first_page(commands: Mapping[str, str], width: int) -> str:
    others = ", ".join(_families([name for name in commands if name not in _FIRST_COMMANDS]))
    commands_block = table(
        "Commands (without one it trains)", [*_FIRST_COMMANDS.items(), ("also", others)], width, _LEFT_WIDTH
    )
    return "\n\n".join(
        [
            f"{usage(commands, None)}\n       python -m runner model=resnet50 data=folder data.root=photos",
            commands_block,
            groups_block(read_groups()[1:], width),
            table("Experiments", [("experiment=NAME", _some(experiments()))], width, _LEFT_WIDTH),
            table("More", _PAGES.items(), width, _LEFT_WIDTH),
        ]
    )


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_EXPERIMENTS
    return ", ".join(names[:_MAX_EXPERIMENTS]) + (f" and {more} more: --help experiment" if more > 0 else "")
