"""The rule of trust: what comes from elsewhere is read; it does nothing unless that is typed again.

A config that one types or commits is one's own, within the closed schema. A run folder, sweep folder, package,
checkpoint or data set from elsewhere is *read*: nothing in it submits, downloads, writes outside, follows links out or
starts other programs unless typed again on the command line. Nobody can tell a run folder that was received from one
that was made here, so the rule holds for every saved config.

The tables below name the keys by which a saved config would reach beyond its run. A key counts as typed when it stands
on the command line itself, or its group does, which replaces the group as a whole.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.errors import ConfigError, Problem
from runner.base.untrusted import printable

SAFE_VALUES: Mapping[str, Any] = {"data.download": False}
"""Keys that a saved config has with these values unless they are typed; they only forbid."""
FORGOTTEN = ("output_dir", "sweep.dir", "sweep.storage")
"""Keys of places that are written to, or connected with: a saved value gives way to the default."""
OF_SLURM = ("dist.launcher", "dist.nodes", "dist.slurm")
"""Keys, and a section, that decide what is handed to SLURM's queue."""
OF_MACHINES = ("dist.nodes", "dist.rendezvous")
"""Keys that decide which other machine is connected with; looking its name up is a query that others see."""
OF_THIS_MACHINE = "dist.node_rank"
"""Differs between the machines of a run, so that the saved one is of no use."""
SETUP = "dist.slurm.setup"
"""Shell commands: the one value of an experiment that is code."""
WEIGHTS = "model.weights"
"""Names what is downloaded, where it is no file and not in torch's cache: see :func:`is_typed`."""
OF_A_SWEEP = (
    *("dist.launcher", "dist.slurm", "dist.nodes", "dist.rendezvous", OF_THIS_MACHINE),
    *("sweep.storage", "data.download", "hydra.launcher"),
)
"""Keys by which the saved command of a sweep would reach beyond its folder, and sections of such keys."""
RETYPED = (*OF_A_SWEEP, WEIGHTS, "dist", "hydra/launcher")
"""What may be typed to go on with a sweep, besides keys of `sweep`: by the value of the first it goes on right here."""
HARMLESS_OPTIONS = {"dist": ("default",), "hydra/launcher": ("trials", "basic", "joblib", "submitit_local")}
"""Of groups that decide who starts processes, the options that start them on this machine."""
_PLAIN = re.compile(r"[A-Za-z_/.][\w/.:@%+-]*")
_NOT_TEXT = ("null", "true", "false", "nan", "inf")


def is_typed(key: str, overrides: Sequence[str]) -> bool:
    """Whether a key, or the group that it belongs to, was typed."""
    typed = set(map(_key_or_group, overrides))
    return key in typed or key.partition(".")[0] in typed


def trusted(
    values: dict[str, Any], defaults: Mapping[str, Any], overrides: Sequence[str], *, only_reads: bool
) -> dict[str, Any]:
    """The values of a saved config, with what is typed laid over them, as far as they may be used.

    Args:
        values: the saved ones, with those that are typed.
        defaults: those of conf/ for the same options.
        overrides: as typed.
        only_reads: nothing is started by these values, so that those of `dist` may stay as they are.

    Raises:
        ConfigError: they would submit a job or connect with another machine, and that was not typed; it says what to
            type.
    """
    safe = dict(values)
    for key, value in SAFE_VALUES.items():
        if _has(safe, key) and not is_typed(key, overrides):
            safe = _with(safe, key, value)
    for key in FORGOTTEN:
        safe = _forgotten(safe, key, defaults, overrides)
    if only_reads or not isinstance(safe.get("dist"), Mapping):
        return safe
    if safe["dist"].get("launcher") == "submitted":
        _refuse(_untyped(safe, defaults, overrides, OF_SLURM), safe, defaults, "submit a job to SLURM", "dist")
        return safe
    if safe["dist"].get("nodes") not in (1, None):
        untyped = _untyped(safe, defaults, overrides, OF_MACHINES)
        _refuse(untyped, safe, defaults, "connect with other machines", *OF_MACHINES)
    safe = _forgotten(safe, "dist.rendezvous", defaults, overrides)
    return _forgotten(safe, OF_THIS_MACHINE, defaults, overrides)


def may_be_retyped(override: str) -> bool:
    """Whether an override may be typed to go on with a sweep: it says who is asked for machines, or what is loaded."""
    return _is_under(_key_or_group(override), RETYPED)


def reaches_beyond(override: str) -> bool:
    """Whether an override of a sweep's command decides who is asked for machines, or what is written to elsewhere.

    By its name only, so that a refusal can list what to type again. What a command really makes of a trial is judged
    where the trial is composed, by :class:`runner.config.saved.TypedCommand`.
    """
    group, value = _key_or_group(override), override.partition("=")[2]
    if group in HARMLESS_OPTIONS:
        return value not in HARMLESS_OPTIONS[group]
    return group == "hydra" or _is_under(group, OF_A_SWEEP)


def _key_or_group(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def refuse_untyped(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Refuse what the saved command of a sweep would do beyond its folder.

    Args:
        overrides: of the saved command, without those that were typed again.
        folders: of configs that it names, without those that were typed again; their experiments might say anything.

    Raises:
        ConfigError: there are some; it says what to type.
    """
    again = [*(f"--config-dir={folder}" for folder in folders), *filter(reaches_beyond, overrides)]
    if again:
        shown = " ".join(shlex.quote(printable(item)) for item in again)
        message = "the saved command of this sweep has what is taken only where it is typed again"
        raise ConfigError([Problem(key="", message=message, hint=f"if that is what you want, type: {shown}")])


def refuse_untyped_setup(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse shell commands that an experiment would put into a job's script, unless SLURM is typed.

    Raises:
        ConfigError: there are some; it says what to type.
    """
    dist = values["dist"]
    if dist["launcher"] == "submitted" and dist["slurm"]["setup"] and not is_typed(SETUP, overrides):
        raise ConfigError(
            [
                Problem(
                    key=SETUP,
                    value=dist["slurm"]["setup"],
                    has_value=True,
                    message="are shell commands, which a job runs only where SLURM is asked for on the command line",
                    hint="if they are what you want, type dist=slurm; to train right here: dist=default",
                    origin="from the experiment",
                )
            ]
        )


def _forgotten(
    values: dict[str, Any], key: str, defaults: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    default = dict(_leaves(defaults)).get(key)
    return values if is_typed(key, overrides) or not _has(values, key) else _with(values, key, default)


def _untyped(
    values: Mapping[str, Any], defaults: Mapping[str, Any], overrides: Sequence[str], keys: Sequence[str]
) -> list[str]:
    """Those of these keys, and of the keys in these sections, that differ from the defaults and were not typed."""
    default = dict(_leaves(defaults))
    return [
        key
        for key, value in _leaves(values)
        if _is_under(key, keys) and not is_typed(key, overrides) and (key not in default or default[key] != value)
    ]


def _refuse(
    untyped: Sequence[str], values: Mapping[str, Any], defaults: Mapping[str, Any], what: str, *shown: str
) -> None:
    """Say that something has to be typed again, and how it was saved."""
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
                hint=f"if these values are what you want, type: {' '.join(again)}; to go on right here: {here}",
            )
        ]
    )


def as_override(key: str, value: object) -> str:
    """A key and a plain value as Hydra's command line takes them, before any shell."""
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
    # Within Hydra's quotes a backslash stands for itself, but before a quote.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def _is_under(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; an empty section has none."""
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
