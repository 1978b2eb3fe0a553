"""`python -m runner runs delete run=DIR`: delete a run that nobody could resume."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.user_paths import refuse_outside_links, refuse_outside_links_at, typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsDeleteCall
from runner.run.run_folder import read_record


def run(argv: list[str]) -> int:
    """Delete a run folder.

    Raises:
        CheckpointError: the folder is no run folder.
        OutputError: a process works on the run, the run could be resumed, or the folder can't be deleted.
    """
    call = read_own("runs delete", RunsDeleteCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links_at(run_dir, ("run.json",))
    read_record(run_dir)  # before the walk, which may be long in a folder that is no run
    refuse_outside_links(run_dir)
    from runner.tools.runs.dispose import delete_run  # noqa: PLC0415 - imports torch

    show(f"deleted {run_dir}, {delete_run(run_dir) / 1e6:,.1f} MB")
    return EXIT_DONE
