"""`python -m runner runs sync run=DIR [tracker=mlflow tracker.uri=…]`: send to trackers what they lack of a run."""

from __future__ import annotations

from pathlib import Path

from runner.base.console import show
from runner.base.errors import EXIT_DONE, ConfigError, Problem, TrackerError
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_call
from runner.config.saved import load_saved
from runner.config.schema.calls.of_runs import RunsSyncCall
from runner.run.run_folder import read_record


def run(argv: list[str]) -> int:
    """Send a run, or each trial of a sweep, to the trackers of its config or to those that are typed.

    Raises:
        CheckpointError: the folder is no run folder and no sweep folder.
        ConfigError: the run has no tracker, or MLflow has no address.
        TrackerError: a tracker can't be told; it has all that it had taken before.
    """
    call, overrides = read_call("runs sync", RunsSyncCall, argv)
    folder = typed_path(call.run, "run").resolve()
    is_sweep = (folder / "sweep.json").is_file()
    runs = sorted(path.parent for path in folder.glob("*/run.json")) if is_sweep else [folder]
    failures = []
    for run_dir in runs:
        try:
            _sync(run_dir, overrides)
        except TrackerError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return EXIT_DONE


def _sync(run_dir: Path, overrides: list[str]) -> None:
    read_record(run_dir)
    refuse_outside_links(run_dir)
    config = load_saved(run_dir, overrides, is_trained=True, only_reads=True).tracker
    if not config.names:
        problem = Problem(key="tracker", message=f"{run_dir} has none", hint="type tracker=mlflow, or another")
        raise ConfigError([problem])
    from runner.run.tracking.beside import check_trackers, uri_of  # noqa: PLC0415 - TensorBoard, once all is checked
    from runner.run.tracking.follower import sync_run  # noqa: PLC0415 - as above

    check_trackers(config)
    has_ended = sync_run(run_dir, config, uri_of(config))
    show(
        f"{run_dir}: {', '.join(config.names)} {'has' if len(config.names) == 1 else 'have'} all of it"
        + ("" if has_ended else ", as far as it is trained")
    )
