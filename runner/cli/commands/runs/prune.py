"""`python -m runner runs prune keep=N [root=outputs] [filters] [dry_run=true]`: delete old checkpoints."""

from __future__ import annotations

from runner.base.console import LOGGER, show
from runner.base.errors import EXIT_DONE, RunnerError
from runner.base.user_paths import refuse_outside_links
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsPruneCall
from runner.tools.runs.find import select_under


def run(argv: list[str]) -> int:
    """Delete the older checkpoints of each run under a folder; those that train or are damaged are left alone, by name.

    Raises:
        ConfigError: a filter is wrong, or the folder does not exist.
        OutputError: a checkpoint can't be deleted.
    """
    call = read_own("runs prune", RunsPruneCall, argv)
    root, lines = select_under(call)
    from runner.tools.runs.dispose import prune_run  # noqa: PLC0415 - imports torch

    total = 0
    for line in lines:
        if line.status in ("running", "queued"):
            show(f"{line.folder}: is {line.status}, left alone")
            continue
        try:
            refuse_outside_links(line.folder)
            sizes = prune_run(line.folder.resolve(), call.keep, is_dry=call.dry_run)
        except RunnerError as error:
            LOGGER.warning("%s: left alone: %s", line.folder, error)
            continue
        total += sum(sizes.values())
        for name, size in sizes.items():
            show(f"{line.folder / 'checkpoints' / name}  {size / 1e6:,.1f} MB")
    show(f"{'would free' if call.dry_run else 'freed'} {total / 1e6:,.1f} MB under {root}")
    return EXIT_DONE
