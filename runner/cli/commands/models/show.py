"""`python -m runner models show name=NAME [version=N] [format=json]`: show the versions of a model, or one of them."""

from __future__ import annotations

import json
import shutil

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.cli.call import read_own
from runner.config.schema.calls.of_models import ModelsShowCall
from runner.tools.registry.overview import facts_of_version, line_of_version, lines_about, versions_of
from runner.tools.registry.resolve import open_registry
from runner.tools.runs.find import as_table

_HEAD = ("version", "aliases", "architecture", "best", "run", "registered (UTC)")
_RIGID = ("best", "registered (UTC)")


def run(argv: list[str]) -> int:
    """Show a registered model.

    Raises:
        ConfigError: a value is wrong.
        CheckpointError, RegistryError: there is no such model or version, or it is damaged.
    """
    call = read_own("models show", ModelsShowCall, argv)
    registry = open_registry(call.registry.uri)
    if call.version is not None:
        facts = facts_of_version(registry, call.name, call.version)
        is_json = call.format == "json"
        show(json.dumps(facts, indent=2, ensure_ascii=False) if is_json else "\n".join(lines_about(facts)))
        return EXIT_DONE
    found = versions_of(registry, call.name)
    if call.format == "json":
        show(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        rows = [line_of_version(facts) for facts in found]
        optional = ("registered (UTC)", "run", "architecture")
        show(as_table(_HEAD, rows, width=shutil.get_terminal_size().columns, rigid=_RIGID, optional=optional))
    return EXIT_DONE
