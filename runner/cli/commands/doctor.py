"""`python -m runner doctor [overrides as for train]`: check whether this machine can run an experiment."""

from __future__ import annotations

import json

from runner.base import console
from runner.base.errors import EXIT_DONE, ConfigError, Problem, UsageError
from runner.cli.call import read_call, split_own_keys
from runner.config.arguments import MULTIRUN
from runner.config.compose import compose_one
from runner.config.hydra_compose import ComposedJob
from runner.config.schema.calls.of_experiments import DoctorCall
from runner.data.splits import combine_errors
from runner.launch.environment import adopted_rank


def run(argv: list[str]) -> int:
    """Check the machine and train briefly; writes no files.

    Raises:
        RunnerError: all reasons why this machine can't run the experiment.
    """
    if MULTIRUN & set(argv):
        raise UsageError("doctor looks at one experiment; leave out -m")
    place = adopted_rank()
    if place is not None and place.world_size != 1:
        raise UsageError(
            f"doctor checks one machine, but {place.starter} has started {place.world_size or 'many'} processes; "
            "run it without a launcher, on each machine that you want to check"
        )
    own, others = split_own_keys(DoctorCall, argv)
    problems: list[Problem] = []
    call: DoctorCall | None = None
    try:
        call, _ = read_call("doctor", DoctorCall, own)
    except ConfigError as error:
        problems += error.problems
    job: ComposedJob | None = None
    try:
        job = compose_one(others)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    assert call is not None, "there were no problems"
    if job is not None:  # None where a flag of Hydra's only shows the config
        _report(job, call)
    return EXIT_DONE


def _key(argument: str) -> str:
    return argument.lstrip("+~").partition("=")[0].partition(".")[0]


def _report(job: ComposedJob, call: DoctorCall) -> None:
    from runner.tools.doctor.diagnose import diagnose  # noqa: PLC0415 - torch is imported only once the config is good

    if call.format == "table" and call.doctor.measure:
        console.LOGGER.info("looking at this machine, then training briefly; this takes a while\n")
    with console.messages_redirected_to(None, None):  # what a training says of itself is not what was asked for
        report = diagnose(job.config, call.doctor)
    match call.format:
        case "table":
            console.show_rows(report.rows())
            console.show("\nthis machine can't run it" if report.errors else "\nthis machine can run it")
        case "json":
            console.show(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    if report.errors:
        raise combine_errors(report.errors)
