"""`python -m runner validate [overrides]`: the checks that `train` makes before training."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.cli.call import call_each, read_call
from runner.config.compose import compose_one
from runner.config.schema.calls.of_experiments import ValidateCall


def run(argv: list[str]) -> int:
    """Check config, data, model and machine (or the config alone); of a sweep (-m) each combination.

    Raises:
        RunnerError: what `train` would raise before training; of several combinations the first.
    """
    call_each(argv, _validate)
    return EXIT_DONE


def _validate(argv: list[str]) -> None:
    call, overrides = read_call("validate", ValidateCall, argv)
    job = compose_one(overrides)
    if job is None:
        return
    if call.config_only:
        show(f"valid config: {job.config.model.name} on {job.config.data.source}; data and machine were not looked at")
        return
    from runner.launch.preflight import preflight  # noqa: PLC0415 - not needed to report a mistake in the config

    ready = preflight(job.config)
    config, splits = ready.config, ready.splits
    lines = [
        f"valid: {config.model.name} on {config.data.source}, "
        f"{len(splits.train):,} training and {len(splits.val):,} validation images, {len(splits.classes)} classes",
        *(f"note: {note}" for note in splits.notes),
        *(["note: devices and precision are checked on SLURM's nodes"] if ready.plan.mode == "submitted" else []),
    ]
    show("\n".join(lines))
