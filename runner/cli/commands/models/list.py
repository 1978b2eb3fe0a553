"""`python -m runner models list [registry.uri=DIR] [format=json]`: show the registered models."""

from __future__ import annotations

import json
import shutil

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.cli.call import read_own
from runner.config.schema.calls.of_models import ModelsListCall
from runner.tools.registry.overview import facts_of_model, line_of_model
from runner.tools.registry.resolve import open_registry
from runner.tools.runs.find import as_table

_HEAD = ("name", "newest", "aliases", "architecture", "best", "registered (UTC)")
_RIGID = ("best", "registered (UTC)")


def run(argv: list[str]) -> int:
    """List the registered models.

    Raises:
        ConfigError: a value is wrong.
        CheckpointError: the registry is damaged.
    """
    call = read_own("models list", ModelsListCall, argv)
    registry = open_registry(call.registry.uri)
    found = [facts_of_model(registry, name) for name in registry.names()]
    if call.format == "json":
        show(json.dumps(found, indent=2, ensure_ascii=False))
    elif not found:
        show(f"no models in {registry.place}; models register run=DIR name=NAME makes the first")
    else:
        rows = [line_of_model(facts) for facts in found]
        optional = ("registered (UTC)", "architecture")
        show(as_table(_HEAD, rows, width=shutil.get_terminal_size().columns, rigid=_RIGID, optional=optional))
    return EXIT_DONE
