"""Splits a command line into Hydra's flags, folders of configs and overrides.

Hydra's own parser accepts abbreviations of flags, `--experimental-rerun`, which unpickles a file, and `--config-path`,
which replaces the primary config. Here the flags are a closed list without abbreviations.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import QuotedString

from runner.base.errors import ConfigError, Problem, UsageError
from runner.base.reasons import reason_of
from runner.base.untrusted import printable
from runner.config import conf_of_working_folder
from runner.config.hydra_errors import COMMAND_LINE, without_plus
from runner.config.overrides import parsed_override

MULTIRUN = frozenset({"-m", "--multirun"})
"""Flags for several runs, or calls, in one command."""
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
"""Flags whose value is the next word; refused ones too, or their value would be taken for a command."""
_CONFIGS = ("job", "hydra", "all")
_FACTS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_SHOWN = {"--cfg": _CONFIGS, "-c": _CONFIGS, "--info": _FACTS, "-i": _FACTS}
"""What Hydra's flags that show something can show."""
_MAX_CHARACTERS = 100_000
_MAX_BRACKETS = 50
_SEARCH_PATH = "hydra.searchpath"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line without its command."""

    flags: tuple[str, ...]
    """Flags for Hydra itself, with their values; without those of config folders and -m."""
    typed_folders: tuple[Path, ...]
    """The config folders that were typed, as full paths."""
    folders: tuple[Path, ...]
    """All config folders of the user's, as full paths: those that were typed, then conf/ of the working folder."""
    is_multirun: bool
    overrides: tuple[str, ...]
    """The rest, as typed and in this order."""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Split a command line, without its command.

    Raises:
        UsageError: a flag that is not accepted.
        ConfigError: an override that is too long, or a config folder that does not exist.
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
            raise UsageError(_refused_flag(name))
    check_sizes(overrides)
    _check_query(flags, is_multirun=bool(MULTIRUN & set(flags)))
    is_query = SHELL_COMPLETION & set(flags) and any(without_plus(item).startswith("query=") for item in overrides)
    if is_query and not os.environ.get("COMP_LINE", "").strip():
        raise UsageError("-sc query=SHELL is for shells, which set COMP_LINE; -sc install=bash makes bash call it")
    if {"--resolve", "--package", "-p"} & set(flags) and not {"--cfg", "-c"} & set(flags):
        raise UsageError("--resolve and --package say how --cfg job shows the config; give it too")
    named = [item for item in overrides if without_plus(item).partition("=")[0] == _SEARCH_PATH]
    places = (*folders, *(place for item in named for place in _search_path(item)))
    typed = tuple(dict.fromkeys(map(_config_folder, places)))
    own = conf_of_working_folder()
    return CommandLine(
        flags=tuple(flag for flag in flags if flag not in MULTIRUN),
        typed_folders=typed,
        folders=typed if own is None or own in typed else (*typed, own),
        is_multirun=bool(MULTIRUN & set(flags)),
        overrides=tuple(item for item in overrides if item not in named),
    )


def _check_query(flags: Sequence[str], *, is_multirun: bool) -> None:
    """Check what Hydra's flags that only show something are asked for."""
    for position, flag in enumerate(flags):
        shown = _SHOWN.get(flag)
        if shown and flags[position + 1] not in shown:
            raise UsageError(f"{flag} {flags[position + 1]}: there are {', '.join(shown)}")
        if shown and is_multirun:
            raise UsageError(f"{flag} shows one config; type it without -m and with one value for each key")


def _refused_flag(flag: str) -> str:
    if flag in _REFUSED:
        return f"{flag} is not accepted: {_REFUSED[flag]}"
    known = sorted(item for item in _WITHOUT_VALUE | _WITH_VALUE | {"--help", "--version"} if item.startswith("--"))
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{flag} is no flag of the runner's, and abbreviations are not accepted; {hint}"


def check_sizes(overrides: Sequence[str]) -> None:
    """Check that overrides can be parsed within bounds: Hydra's parser recurses for each bracket.

    Raises:
        ConfigError: an override that is too long or nested too deep, or has a NUL character in it.
    """
    for override in overrides:
        num_brackets = max(override.count(bracket) for bracket in "[{(")
        if len(override) > _MAX_CHARACTERS or num_brackets > _MAX_CHARACTERS // 10 or _depth(override) > _MAX_BRACKETS:
            key = without_plus(override).partition("=")[0][:80]
            message = (
                f"{override[:40]!r}… is too long or nested too deep: at most {_MAX_CHARACTERS:,} characters and "
                f"{_MAX_BRACKETS} nested brackets are allowed"
            )
            raise ConfigError([Problem(key=key, message=message, origin=COMMAND_LINE)])
        if not override.isascii() and re.search("[\ud800-\udfff]", override):
            message = f"'{printable(override)}' is no UTF-8 text"
            hint = "rename files with such names, and set a locale such as LC_ALL=C.UTF-8"
            raise ConfigError([Problem(key="", message=message, hint=hint, origin=COMMAND_LINE)])
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
    """A config folder as a full path; Hydra's other schemes, such as pkg://, would import code."""
    scheme, separator, rest = place.partition("://")
    if separator and scheme != "file":
        message = f"{place}: configs are read from folders only; give a path, or file:///full/path"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)])
    try:
        folder = Path(rest if separator else place).expanduser()
        if folder.is_dir():
            return folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        message = f"config folder {place!r} can't be read: {reason_of(error)}"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)]) from error
    raise ConfigError([Problem(key="", message=f"config folder {place!r} not found", origin=COMMAND_LINE)])
