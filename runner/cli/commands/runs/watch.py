"""`python -m runner runs watch run=DIR [every_seconds=5]`: follow a run that another process trains."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE, CheckpointError
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsWatchCall
from runner.run.run_folder import is_waiting, read_record
from runner.tools.runs.find import Line
from runner.tools.runs.past import describe_metric, describe_seconds
from runner.tools.runs.watch import follow

_EXIT_NOT_COMPLETED = 1


def run(argv: list[str]) -> int:
    """Show what a run logs until it ends.

    Returns:
        0 where the run was trained to its end or was pruned, 1 where it failed, died or was stopped.

    Raises:
        CheckpointError: the folder is no run folder, or a file of it is damaged.
    """
    call = read_own("runs watch", RunsWatchCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links(run_dir)
    if not is_waiting(run_dir):
        read_record(run_dir)
    for seen in follow(run_dir, every_seconds=call.every_seconds):
        if isinstance(seen, Line):
            show(_end(seen))
            if seen.status == "damaged":
                raise CheckpointError(str(seen.error))
            return EXIT_DONE if seen.status in ("completed", "pruned") else _EXIT_NOT_COMPLETED
        show(seen)
    raise AssertionError("the last thing that is seen is the end")


def _end(line: Line) -> str:
    best = line.best and f"best {line.best['metric']} {describe_metric(line.best['metric'], line.best['value'])}"
    took = None if line.elapsed_seconds is None else f"after {describe_seconds(line.elapsed_seconds)}"
    return ", ".join(part for part in (f"{line.folder} {line.status}", took, best, line.error) if part)
