"""From a checked config to running processes: here, by PyTorch's elastic agent, by whoever has
started us, or later, by SLURM.

Importing this package imports no torch.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from runner.base.console import LOGGER
from runner.base.stop import StopRequest
from runner.run import run_folder
from runner.training.work import Result, Training, Work

if TYPE_CHECKING:
    from runner.launch.preflight import Ready
    from runner.launch.slurm.submitted import Submission


def launch(
    ready: Ready, work: Work[Result], *, folder: Path | None = None, stop: StopRequest | None = None
) -> Result | Submission:
    """Do a work in the mode that the plan has chosen, or submit a training; of many processes, each returns the same.

    Args:
        ready: what passed the preflight.
        work: a training or an evaluation.
        folder: where it writes: empty, or to go on in; by default a new run folder is made under output_dir.
        stop: tells that a stop is wanted; by default signals do from the beginning of training on.

    Raises:
        StoppedOnRequest: after a request to stop, with everything saved.
        RunnerError: the named error that ended the run, whichever process met it.
    """
    plan = ready.plan
    if stop is not None:
        stop.refuse_to_begin()
    match plan.mode:
        case "inline":
            return _work_here(ready, work, folder, stop)
        case "elastic":
            from runner.launch.elastic.agent import launch_elastic  # noqa: PLC0415

            return launch_elastic(ready, folder, work)
        case "adopted":
            from runner.launch.ranks.adopted import live_adopted  # noqa: PLC0415

            return live_adopted(ready, folder, work)
        case "submitted":
            from runner.launch.slurm.submitted import submit  # noqa: PLC0415 - few have use for it

            assert isinstance(work, Training), "only trainings are submitted"
            return submit(ready, folder, work)
        case _:
            assert_never(plan.mode)


def _work_here(ready: Ready, work: Work[Result], folder: Path | None, stop: StopRequest | None) -> Result:
    """Do a work in this process alone."""
    from runner.launch.ranks.grace import ended_in_time, tell_alone  # noqa: PLC0415 - torch only once all is checked

    config = ready.config
    LOGGER.info("launch      %s (%s)", ready.plan.mode, ready.plan.reason)
    run_dir = folder or run_folder.make_new(Path(config.output_dir))
    log = run_folder.RunFolder(run_dir).log_file(0)
    with ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        stack.enter_context(
            ended_in_time(
                config, stop, log, work.if_cut, lambda error: tell_alone(run_dir, log, error, work.num_earlier)
            )
        )
        return work.carry_out(config, run_dir, ready.splits, stop=stop)
