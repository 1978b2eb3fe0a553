"""`python -m runner doctor [overrides as for train]`: whether this machine can run an experiment, and why not."""

from __future__ import annotations

import json

from runner.base import console
from runner.base.errors import EXIT_DONE, ConfigError, Problem, UsageError
from runner.cli.call import read_call
from runner.config.arguments import MULTIRUN
from runner.config.compose import compose_one
from runner.config.composing import Job
from runner.config.schema.calls import DoctorCall
from runner.data.splits import combined
from runner.launch.environment import adopted_place


def run(argv: list[str]) -> int:
    """Look at the machine and try the experiment; nothing is kept.

    Raises:
        RunnerError: why this machine can't run it, all reasons at once.
    """
    if MULTIRUN & set(argv):
        raise UsageError("doctor looks at one experiment; leave out -m")
    place = adopted_place()
    if place is not None and place.world_size != 1:
        raise UsageError(
            f"doctor looks at one machine, but {place.starter} has started {place.world_size or 'many'} processes; "
            "start it by itself, on each machine that is in doubt"
        )
    own = [argument for argument in argv if _key(argument) in DoctorCall.model_fields]
    problems: list[Problem] = []
    call: DoctorCall | None = None
    try:
        call, _ = read_call("doctor", DoctorCall, own)
    except ConfigError as error:
        problems += error.problems
    job: Job | None = None
    try:
        job = compose_one([argument for argument in argv if argument not in own])
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    assert call is not None, "there were no problems"
    if job is not None:  # none where Hydra was only asked to show the config
        _report(job, call)
    return EXIT_DONE


def _key(argument: str) -> str:
    return argument.lstrip("+~").partition("=")[0].partition(".")[0]


def _report(job: Job, call: DoctorCall) -> None:
    from runner.tools.doctor.examine import examine  # noqa: PLC0415 - torch is imported only once the config is good

    if call.format == "table" and call.doctor.measure:
        console.LOGGER.info("looking at this machine, then training briefly; this takes a while\n")
    with console.shown_on(None, None):  # what a training says of itself is not what was asked for
        report = examine(job.config, call.doctor)
    match call.format:
        case "table":
            console.show_rows(report.rows())
            console.show("\nthis machine can't run it" if report.errors else "\nthis machine can run it")
        case "json":
            console.show(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    if report.errors:
        raise combined(report.errors)
