"""`python -m runner architectures [pattern='resnet*'] [source=…] [limit=…] [format=json]`: names for `model.name`."""

from __future__ import annotations

import json
import shutil

from runner.base.console import show
from runner.base.errors import EXIT_DONE, ConfigError, Problem
from runner.cli.call import read_own
from runner.config.schema.calls.of_experiments import ArchitecturesCall
from runner.config.schema.checks.validation import did_you_mean

_HEAD = ("name", "model", "parameters", "px", "weights")
_UNKNOWN = "–"


def run(argv: list[str]) -> int:
    """List architectures.

    Raises:
        ConfigError: a key is wrong, or no name matches.
        MissingPackageError: source=timm, and timm is not installed.
    """
    call = read_own("architectures", ArchitecturesCall, argv)
    from runner.model import listing  # noqa: PLC0415 - imports torch
    from runner.tools.runs.find import as_table  # noqa: PLC0415

    found = listing.names_like(call.pattern, call.source)
    if not found:
        names = [name for _, name in listing.names_like("*", call.source)]
        hint = did_you_mean(call.pattern.strip("*?"), names)
        raise ConfigError(
            [Problem(key="pattern", value=call.pattern, has_value=True, message="no name matches", hint=hint)]
        )
    shown = [listing.describe(source, name) for source, name in found[: call.limit]]
    if call.format == "json":
        show(json.dumps([vars(one) for one in shown], indent=2))
        return EXIT_DONE
    rows = [
        (
            one.name,
            one.source,
            _UNKNOWN if one.num_parameters is None else f"{one.num_parameters / 1e6:,.1f} M",
            str(one.image_size or _UNKNOWN),
            ", ".join(one.weights) or _UNKNOWN,
        )
        for one in shown
    ]
    show(as_table(_HEAD, rows, width=shutil.get_terminal_size().columns, rigid=_HEAD[1:4]))
    if len(found) > len(shown):
        show(f"{len(found) - len(shown):,} more names match (limit={call.limit})")
    return EXIT_DONE
