"""What a saved config may do: it is read, and reaches beyond its run only by keys that are typed again.

Configs that a user types or commits are trusted within the closed schema. Run folders, sweep folders, packages,
checkpoints and data sets may come from others: nothing in them submits jobs, downloads, writes outside, follows links
out or starts programs unless that is typed on the command line. A received run folder looks like one that was made
here, so this holds for every saved config.

The tables below name the keys by which a saved config would reach beyond its run. A key counts as typed if it, or its
group, which replaces all of the group, is on the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.errors import ConfigError, Problem
from runner.base.untrusted import printable

SAFE_VALUES: Mapping[str, Any] = {"data.download": False, "run.snapshot": False}
"""Keys that have these values, instead of the saved ones, unless they are typed: what is downloaded, and which files of
the user's are copied."""
FORGOTTEN = ("output_dir", "sweep.dir", "sweep.storage", "tracker.uri")
"""Places that are written or connected to: they have the default instead of the saved value unless they are typed."""
OF_SLURM = ("dist.launcher", "dist.nodes", "dist.slurm")
"""Keys, and a section, that decide what is submitted to SLURM."""
OF_MACHINES = ("dist.nodes", "dist.rendezvous")
"""Keys that decide which other machine is connected to; even looking its name up is a query that others see."""
OF_THIS_MACHINE = "dist.node_rank"
"""Differs between the machines of a run, so the saved value is not used."""
SETUP = "dist.slurm.setup"
"""Shell commands: the one value of an experiment that is code."""
WEIGHTS = "model.weights"
"""Decides what is downloaded, where it is no file and not in torch's cache."""
OF_A_SWEEP = (
    *("dist.launcher", "dist.slurm", "dist.nodes", "dist.rendezvous", OF_THIS_MACHINE),
    *("sweep.storage", "data.download", "tracker.uri", "hydra.launcher"),
)
"""Keys and sections by which the saved command of a sweep would reach beyond its folder."""
RETYPED = (*OF_A_SWEEP, WEIGHTS, "dist", "tracker", "hydra/launcher")
"""What may be typed to resume a sweep, besides keys of `sweep`."""
HARMLESS_OPTIONS = {"dist": ("default",), "hydra/launcher": ("trials", "basic", "joblib", "submitit_local")}
"""Options of launching groups that start processes on this machine only."""
_PLAIN = re.compile(r"[A-Za-z_/.][\w/.:@%+-]*")
_NOT_TEXT = ("null", "true", "false", "nan", "inf")


def is_typed(key: str, overrides: Sequence[str]) -> bool:
    """Whether a key or its group was typed."""
    typed = set(map(_key_or_group, overrides))
    return key in typed or key.partition(".")[0] in typed


def apply_trust_rules(
    values: dict[str, Any], defaults: Mapping[str, Any], overrides: Sequence[str], *, only_reads: bool
) -> dict[str, Any]:
    """Reset or refuse the values of a saved config that reach beyond its run and are not typed.

    Args:
        values: the saved values with the typed ones applied.
        defaults: those of conf/ for the same options.
        overrides: as typed.
        only_reads: the config starts no process, so that the saved values of `dist` may stay.

    Raises:
        ConfigError: the values would submit a job or connect to another machine; the message says what to type.
    """
    safe = dict(values)
    for key, value in SAFE_VALUES.items():
        if _has(safe, key) and not is_typed(key, overrides):
            safe = _with(safe, key, value)
    for key in FORGOTTEN:
        safe = _reset(safe, key, defaults, overrides)
    if only_reads or not isinstance(safe.get("dist"), Mapping):
        return safe
    if safe["dist"].get("launcher") == "submitted":
        _refuse(_untyped(safe, defaults, overrides, OF_SLURM), safe, defaults, "submit a job to SLURM", "dist")
        return safe
    if safe["dist"].get("nodes") not in (1, None):
        untyped = _untyped(safe, defaults, overrides, OF_MACHINES)
        _refuse(untyped, safe, defaults, "connect to other machines", *OF_MACHINES)
    safe = _reset(safe, "dist.rendezvous", defaults, overrides)
    return _reset(safe, OF_THIS_MACHINE, defaults, overrides)


def may_be_retyped(override: str) -> bool:
    """Whether an override may be typed to resume a sweep."""
    return _is_under(_key_or_group(override), RETYPED)


def reaches_beyond(override: str) -> bool:
    """Whether an override of a sweep's saved command would reach beyond its folder, judged by its key only.

    The values are checked where trials are composed, by :class:`runner.config.saved.TypedCommand`.
    """
    group, value = _key_or_group(override), override.partition("=")[2]
    if group in HARMLESS_OPTIONS:
        return value not in HARMLESS_OPTIONS[group]
    return group == "hydra" or _is_under(group, OF_A_SWEEP)


def _key_or_group(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def refuse_untyped(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Refuse overrides and config folders by which the saved command of a sweep would reach beyond its folder.

    Args:
        overrides: of the saved command, without those that were typed again.
        folders: config folders of the saved command, without those that were typed again.

    Raises:
        ConfigError: there are some; the message says what to type.
    """
    again = [*(f"--config-dir={folder}" for folder in folders), *filter(reaches_beyond, overrides)]
    if again:
        shown = " ".join(shlex.quote(printable(item)) for item in again)
        message = "the saved command of this sweep has overrides that are used only where they are typed again"
        raise ConfigError([Problem(key="", message=message, hint=f"if that is what you want, type: {shown}")])


def refuse_untyped_setup(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse dist.slurm.setup of an experiment file, which is shell commands, unless it or `dist` is typed.

    Raises:
        ConfigError: it is set; the message says what to type.
    """
    dist = values["dist"]
    if dist["launcher"] == "submitted" and dist["slurm"]["setup"] and not is_typed(SETUP, overrides):
        raise ConfigError(
            [
                Problem(
                    key=SETUP,
                    value=dist["slurm"]["setup"],
                    has_value=True,
                    message="are shell commands, which a job runs only where dist=slurm is typed on the command line",
                    hint="to run them, type dist=slurm; to train on this machine, type dist=default",
                    origin="from the experiment",
                )
            ]
        )


def _reset(values: dict[str, Any], key: str, defaults: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    default = dict(_leaves(defaults)).get(key)
    return values if is_typed(key, overrides) or not _has(values, key) else _with(values, key, default)


def _untyped(
    values: Mapping[str, Any], defaults: Mapping[str, Any], overrides: Sequence[str], keys: Sequence[str]
) -> list[str]:
    """The keys among these, and in these sections, that differ from the defaults and are not typed."""
    default = dict(_leaves(defaults))
    return [
        key
        for key, value in _leaves(values)
        if _is_under(key, keys) and not is_typed(key, overrides) and (key not in default or default[key] != value)
    ]


def _refuse(
    untyped: Sequence[str], values: Mapping[str, Any], defaults: Mapping[str, Any], what: str, *shown: str
) -> None:
    """Raise with what has to be typed again, including the saved values."""
    if not untyped:
        return
    submits, default = shown == ("dist",), dict(_leaves(defaults))
    again = ["dist=slurm"] if submits else []
    again += [
        shlex.quote(printable(as_override(key, value)))
        for key, value in _leaves(values)
        if _is_under(key, shown)
        and key not in ("dist.launcher", OF_THIS_MACHINE)
        and (key not in default or default[key] != value)
    ]
    here = "dist=default" if submits else "dist.nodes=1"
    raise ConfigError(
        [
            Problem(
                key=", ".join(map(printable, untyped)),
                message=f"the saved config would {what}, which it does only where that is typed again",
                hint=f"to use these values, type: {' '.join(again)}; to continue on this machine: {here}",
            )
        ]
    )


def as_override(key: str, value: object) -> str:
    """A key and a plain value in Hydra's grammar, without quotes for a shell."""
    return f"{key}={_as_typed(value)}"


def _as_typed(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
            return value if is_plain else _quoted(value)
        case Mapping():
            return "{" + ",".join(f"{_as_typed(str(name))}:{_as_typed(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_as_typed, value)) + "]"
        case _:
            return str(value)


def _quoted(text: str) -> str:
    # In Hydra's quotes a backslash is literal, except before a quote.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def _is_under(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that is no section, with its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _has(values: Mapping[str, Any], key: str) -> bool:
    first, _, rest = key.partition(".")
    if not rest:
        return first in values
    return isinstance(values.get(first), Mapping) and _has(values[first], rest)


def _with(values: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**values, first: _with(values[first], rest, value) if rest else value}
