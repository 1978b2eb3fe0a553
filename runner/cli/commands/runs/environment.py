"""`python -m runner runs environment run=DIR output=FOLDER`: what rebuilds the environment of a run."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsEnvironmentCall
from runner.tools.runs.rebuild import write_environment


def run(argv: list[str]) -> int:
    """Write requirements.txt, a Dockerfile, a devcontainer.json, and the code of a run that has kept it.

    Raises:
        CheckpointError: the folder is no run folder, or a file of it is damaged.
        ConfigError: the run does not say which Python it had, and no base image was typed.
        OutputError: the output exists already or can't be written.
    """
    call = read_own("runs environment", RunsEnvironmentCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    output = typed_path(call.output, "output").absolute()
    refuse_outside_links(run_dir)
    rebuilt = write_environment(run_dir, output, base=call.base)
    LOGGER.info("environment %s: %d packages, Python %s", output, len(rebuilt.pins), rebuilt.python or "unknown")
    for note in rebuilt.notes:
        LOGGER.info("            %s", note)
    return EXIT_DONE
