"""`python -m runner runs repeat run=DIR [overrides]`: a new run with the config of another."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.cli.call import read_call
from runner.config.saved import load_saved
from runner.config.schema.calls.of_runs import RunsRepeatCall
from runner.config.trust import WEIGHTS, is_typed
from runner.launch.preflight import preflight
from runner.tools.hooks import training_hooks
from runner.tools.runs.past import read_run
from runner.tools.runs.repeat import reasons_to_differ
from runner.training.attempt import Attempt, Training


def run(argv: list[str]) -> int:
    """Train a new run with the config of another.

    Raises:
        CheckpointError: the folder is no run folder.
        RunnerError: what `train` would raise.
    """
    with StopRequest() as stop:
        call, overrides = read_call("runs repeat", RunsRepeatCall, argv)
        original = read_run(typed_path(call.run, "run").resolve())
        may_download = is_typed(WEIGHTS, overrides)
        ready = preflight(load_saved(original.path, overrides), may_download=may_download)
        LOGGER.info("repeats     %s", original.path)
        for reason in reasons_to_differ(original, ready):
            LOGGER.warning("%s", reason)
        from runner.launch import launch  # noqa: PLC0415 - torch only after config and data are checked

        typed_before = [str(item) for item in original.record.get("overrides") or ()]
        attempt = Attempt(overrides=(*typed_before, *overrides), repeats=str(original.path), may_download=may_download)
        launch(ready, Training(attempt=attempt, hooks=training_hooks(ready.config)), stop=stop)
    return EXIT_DONE
