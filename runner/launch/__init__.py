"""From a checked config to running processes: this one, new ones of PyTorch's elastic agent, the ranks that torchrun,
srun or mpirun started, or a job of SLURM.

Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from runner.base.console import LOGGER
from runner.base.stop import StopRequest
from runner.run import run_folder
from runner.training.attempt import Result, Training, Work

if TYPE_CHECKING:
    from runner.launch.preflight import Ready
    from runner.launch.slurm import Submission


def launch(
    ready: Ready, work: Work[Result], *, folder: Path | None = None, stop: StopRequest | None = None
) -> Result | Submission:
    """Train or evaluate in the mode that the plan names, or submit a training; each of many processes returns the same.

    Args:
        ready: what passed the preflight.
        work: a training or an evaluation.
        folder: the output folder, empty or that of a run to continue; by default a new run folder under output_dir.
        stop: tells whether to stop; by default signals do, from the beginning of training on.

    Raises:
        StoppedOnRequest: after a request to stop, with everything saved.
        RunnerError: the named error that ended the run, whichever process raised it.
    """
    if stop is not None:
        stop.raise_if_received()
    match ready.plan.mode:
        case "inline":
            with _single_process(ready, work, folder, stop) as (run_dir, own_stop):
                return work.run(ready.config, run_dir, ready.splits, stop=own_stop)
        case "elastic":
            from runner.launch.elastic.agent import launch_elastic  # noqa: PLC0415

            return launch_elastic(ready, folder, work)
        case "adopted":
            from runner.launch.ranks.adopted import run_adopted  # noqa: PLC0415

            return run_adopted(ready, folder, work)
        case "submitted":
            from runner.launch.slurm import submit  # noqa: PLC0415 - not needed without SLURM

            assert isinstance(work, Training), "only trainings are submitted"
            return submit(ready, folder, work)
        case _:
            assert_never(ready.plan.mode)


@contextmanager
def _single_process(
    ready: Ready, work: Work[Result], folder: Path | None, stop: StopRequest | None
) -> Iterator[tuple[Path, StopRequest]]:
    """The output folder and the stop request of work in this process, which exits if it overruns its grace period."""
    from runner.dist.device import fair_number_of_threads  # noqa: PLC0415 - torch only after all checks
    from runner.launch.ranks.grace import exit_after_grace, report_overrun  # noqa: PLC0415

    LOGGER.info("launch      %s (%s)", ready.plan.mode, ready.plan.reason)
    run_dir = folder or run_folder.make_run_folder(Path(ready.config.output_dir))
    log = run_folder.RunFolder(run_dir).log_file(0)
    with ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        stack.enter_context(fair_number_of_threads(ready.config.trainer))
        on_overrun = partial(report_overrun, run_dir, log, work.num_earlier)
        stack.enter_context(exit_after_grace(ready.config, stop, log, work.advice_if_killed, on_overrun))
        yield run_dir, stop
