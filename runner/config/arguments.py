"""What stands on a command line besides overrides: the flags of Hydra's that are taken, and folders of configs.

Hydra's own parser takes abbreviations of flags, `--experimental-rerun`, which unpickles a file, and `--config-path`,
which replaces the primary config. Here the flags are a closed list, spelt out.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import QuotedString

from runner.base.errors import ConfigError, Problem, UsageError
from runner.config.overrides import parsed_override
from runner.config.refusal import COMMAND_LINE, plain

MULTIRUN = frozenset({"-m", "--multirun"})
"""Flags that ask for several runs, or calls, in one command."""
SHELL_COMPLETION = frozenset({"-sc", "--shell-completion"})
_WITHOUT_VALUE = MULTIRUN | SHELL_COMPLETION | {"--resolve", "--hydra-help"}
_CONFIG_DIR = frozenset({"--config-dir", "-cd"})
_WITH_VALUE = _CONFIG_DIR | {"--cfg", "-c", "--package", "-p", "--info", "-i"}
_REFUSED = {
    "--experimental-rerun": "it would unpickle a file, which can run anything; repeat a run with runs repeat run=DIR",
    "--config-path": "the primary config is the runner's own; add a folder of configs with --config-dir FOLDER",
    "--config-name": "the primary config is the runner's own; write an experiment and choose it with experiment=NAME",
} | {"-cp": "add a folder of configs with --config-dir FOLDER", "-cn": "choose an experiment with experiment=NAME"}
FLAGS_WITH_VALUE = _WITH_VALUE | _REFUSED.keys()
"""Flags after which a value stands, which is no command; those that are refused are told as flags, not as commands."""
_MAX_CHARACTERS = 100_000
_MAX_BRACKETS = 50
_SEARCH_PATH = "hydra.searchpath"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line without its command."""

    flags: tuple[str, ...]
    """Flags that Hydra itself carries out, with their values; those of folders and of -m are not among them."""
    folders: tuple[Path, ...]
    """Folders of the user's own configs, as full paths."""
    is_multirun: bool
    """Whether -m was typed."""
    overrides: tuple[str, ...]
    """The rest, as typed, and in this order."""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Tell flags, folders of configs and overrides apart.

    Raises:
        UsageError: a flag that is not taken.
        ConfigError: an override that is too long to be read, or a folder of configs that is none.
    """
    flags: list[str] = []
    folders: list[str] = []
    overrides: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            overrides.append(word)
        elif word in _WITHOUT_VALUE:
            flags.append(word)
        elif name in _WITH_VALUE:
            given = value if equals else next(words, None)
            if given is None:
                raise UsageError(f"{name} needs a value")
            folders.append(given) if name in _CONFIG_DIR else flags.extend((name, given))
        else:
            raise UsageError(_not_taken(name))
    check_sizes(overrides)
    if SHELL_COMPLETION & set(flags) and "query" in {plain(item).partition("=")[0] for item in overrides}:
        _check_surroundings_of_completion()
    if {"--resolve", "--package", "-p"} & set(flags) and not {"--cfg", "-c"} & set(flags):
        raise UsageError("--resolve and --package say how --cfg job shows the config; give it too")
    named = [item for item in overrides if plain(item).partition("=")[0] == _SEARCH_PATH]
    found = [_config_folder(place) for place in (*folders, *(place for item in named for place in _search_path(item)))]
    return CommandLine(
        flags=tuple(flag for flag in flags if flag not in MULTIRUN),
        folders=tuple(found),
        is_multirun=bool(MULTIRUN & set(flags)),
        overrides=tuple(item for item in overrides if item not in named),
    )


def _check_surroundings_of_completion() -> None:
    if "COMP_LINE" not in os.environ:
        raise UsageError("-sc query=SHELL is what a shell calls, with COMP_LINE set; -sc install=bash tells it how")


def _not_taken(flag: str) -> str:
    if flag in _REFUSED:
        return f"{flag} is not taken: {_REFUSED[flag]}"
    known = sorted(item for item in _WITHOUT_VALUE | _WITH_VALUE | {"--help", "--version"} if item.startswith("--"))
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{flag} is no flag of the runner's, and abbreviations are not taken; {hint}"


def check_sizes(overrides: Sequence[str]) -> None:
    """Refuse what can't be parsed within bounds: parsers call themselves for each bracket.

    Raises:
        ConfigError: an override that is too long or nested too deep, or has a NUL character in it.
    """
    for override in overrides:
        _check_size(override)


def _check_size(override: str) -> None:
    num_brackets = max(override.count(bracket) for bracket in "[{(")
    if len(override) > _MAX_CHARACTERS or num_brackets > _MAX_CHARACTERS // 10 or _depth(override) > _MAX_BRACKETS:
        message = (
            f"{override[:40]!r}… is too long or nested too deep to be read: at most {_MAX_CHARACTERS:,} characters and "
            f"{_MAX_BRACKETS} brackets within each other"
        )
        raise ConfigError([Problem(key=plain(override).partition("=")[0][:80], message=message, origin=COMMAND_LINE)])
    if "\0" in override:
        raise ConfigError([Problem(key="", message=f"{override!r} has a NUL character in it", origin=COMMAND_LINE)])


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        deepest = max(deepest, depth)
    return deepest


def _search_path(override: str) -> list[str]:
    parsed = parsed_override(override)
    value = parsed.value()
    places = value if isinstance(value, list) else [value]
    texts = [item.text if isinstance(item, QuotedString) else str(item) for item in places]
    if parsed.is_sweep_override() or not all(isinstance(item, str | QuotedString) for item in places):
        raise ConfigError(
            [Problem(key=_SEARCH_PATH, message="must be a list of folders, such as [my/conf]", origin=COMMAND_LINE)]
        )
    return texts


def _config_folder(place: str) -> Path:
    """A folder of configs as a full path; other kinds of places could import code (pkg://) or fetch it."""
    scheme, separator, rest = place.partition("://")
    if separator and scheme != "file":
        message = f"{place}: configs are read from folders only; give a path, or file:///full/path"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)])
    try:
        folder = Path(rest if separator else place).expanduser()
        if folder.is_dir():
            return folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        message = f"config folder {place!r} can't be read: {error}"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)]) from error
    raise ConfigError([Problem(key="", message=f"config folder {place!r} not found", origin=COMMAND_LINE)])
