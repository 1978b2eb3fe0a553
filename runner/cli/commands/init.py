"""`python -m runner init output=FOLDER`: write a project of the user's own."""

from __future__ import annotations

import shlex
from pathlib import Path

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.cli.call import read_own
from runner.config.schema.calls.of_experiments import InitCall


def run(argv: list[str]) -> int:
    """Write a project.

    Raises:
        ConfigError: what was typed is wrong.
        RunnerError: the photos can't be used, or the project not be written.
    """
    call = read_own("init", InitCall, argv)
    from runner.tools.init.project import write_project  # noqa: PLC0415 - not needed to report a mistake in the call

    lines = write_project(call)
    change = "" if Path(call.output).resolve() == Path.cwd() else f"cd {shlex.quote(call.output)} && "
    show("\n".join([*lines, f"train it: {change}python -m runner experiment=first"]))
    return EXIT_DONE
