"""Starts the processes of this machine with PyTorch's elastic agent, which runs in this process, the launcher."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from runner.base import console
from runner.base.children import safe_path_for_children
from runner.base.console import LOGGER
from runner.base.errors import LaunchError, RankFailedError, RunnerError, StoppedOnRequest
from runner.launch.elastic.machines import Machines, connect_machines, single_machine
from runner.launch.elastic.pickled_file import PickledFile, temporary_file_error
from runner.launch.elastic.rounds import (
    BACKEND,
    Assignment,
    NotRestartedError,
    RankOutcome,
    rendezvous_options,
    run_rank,
)
from runner.launch.elastic.shared_state import SharedState, forwarded_stop_signals
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, correct_record, first_failure, log_failure
from runner.run import run_folder
from runner.training.attempt import Result, Work

_LOGGERS_OF_THE_AGENT = ("torch.distributed.elastic", "torch.multiprocessing")
_SECONDS_TO_END = 5.0  # for the other processes, after a failure, before they are killed
_SECONDS_TO_GIVE_UP = 3.0  # for the agent, after that, before the launcher ends itself
_TICK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class _Launched(Generic[Result]):
    """Work that is being done, and its processes."""

    ready: Ready
    work: Work[Result]
    assignment: Assignment[Result]

    @property
    def shared_state(self) -> SharedState:
        """Memory that the launcher shares with its processes."""
        return self.assignment.shared_state


def launch_elastic(ready: Ready, folder: Path | None, work: Work[Result]) -> Result:
    """Start as many processes as the plan says, and let them do the work.

    Raises:
        StoppedOnRequest: the run was stopped, with everything saved.
        LaunchError: the machines can't connect to each other.
        OutputError: temporary files or the run folder can't be written.
        RunnerError: the error of the process that failed first; RankFailedError if that is no RunnerError.
    """
    plan, config = ready.plan, ready.config
    shared_state = SharedState(plan.procs_per_node)
    with ExitStack() as stack:
        stack.enter_context(safe_path_for_children())
        stack.enter_context(forwarded_stop_signals(shared_state))
        records, what = stack.enter_context(_records()), stack.enter_context(PickledFile((ready, work)))
        machines = connect_machines(config, plan) if plan.num_nodes > 1 else single_machine()
        if plan.num_nodes == 1:
            folder = folder or run_folder.make_run_folder(Path(config.output_dir))
        stack.enter_context(_log(folder, shared_state))
        LOGGER.info("launch      %s (%s)", plan.mode, plan.reason)
        assignment = Assignment(
            what=what,
            folder=folder,
            shared_state=shared_state,
            records=records,
            is_shown=console.is_set_up(),
            num_machines=machines.count,
            interface=machines.interface,
        )
        launched = _Launched(ready=ready, work=work, assignment=assignment)
        stack.enter_context(_survivors_ended(launched))
        try:
            outcomes: dict[int, RankOutcome[Result]] = elastic_launch(_agent_config(launched, machines), run_rank)(
                assignment
            )
        except ChildFailedError as error:
            raise _reported(_explained(error, launched), launched) from None
        except (NotRestartedError, RendezvousError, SignalException, DistError) as error:
            # If processes of this machine have failed before, their errors explain more than the agent's.
            record = first_failure([records])
            if record is None:
                raise LaunchError(f"the elastic agent gave up: {error}") from error
            raise _reported(_recorded(record, launched), launched) from None
        return _concluded(list(outcomes.values()))


@contextmanager
def _records() -> Iterator[Path]:
    """A folder for the error files of the processes."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="runner-"))
    except OSError as error:
        raise temporary_file_error(error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _agent_config(launched: _Launched[Result], machines: Machines) -> LaunchConfig:
    plan, dist = launched.ready.plan, launched.ready.config.dist
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")  # without it, restarts under gloo race and often fail
    return LaunchConfig(
        min_nodes=plan.num_nodes,
        max_nodes=plan.num_nodes,
        nproc_per_node=plan.procs_per_node,
        run_id=machines.run_id,
        role="runner",
        rdzv_backend=BACKEND,
        rdzv_configs=rendezvous_options(
            machines,
            dist.rendezvous_timeout_seconds,
            may_begin=lambda: not launched.shared_state.has_final_failure,
            on_begin=lambda: _clear_failures(launched),
        ),
        local_addr=machines.address,
        max_restarts=dist.max_restarts,
        monitor_interval=0.1,
        start_method="spawn",  # neither CUDA nor torch's threads survive a fork
        signals_to_handle="SIGQUIT",  # on its default ones, the agent would end the processes at once
    )


def _clear_failures(launched: _Launched[Result]) -> None:
    """Remove the failures of the attempt before."""
    launched.shared_state.reset()
    for file in launched.assignment.records.glob("rank_*.error.json"):
        file.unlink()


@contextmanager
def _log(folder: Path | None, shared_state: SharedState) -> Iterator[None]:
    """Log the launcher's messages to the run folder, and those of the elastic agent only there.

    Each of several machines has its own file, which is written once the processes have agreed on the folder.
    """
    with ExitStack() as stack:
        if folder is not None:
            (folder / "logs").mkdir(exist_ok=True)
            stack.enter_context(console.log_to_file(folder / "logs" / "launcher.log"))
        else:
            kept = stack.enter_context(console.log_buffered())
            stack.callback(
                lambda: (
                    shared_state.folder and kept(shared_state.folder / "logs" / f"launcher_{socket.gethostname()}.log")
                )
            )
        files = [handler for handler in LOGGER.handlers if not isinstance(handler, console.ConsoleHandler)]
        for agent in map(logging.getLogger, _LOGGERS_OF_THE_AGENT):
            stack.callback(vars(agent).update, handlers=agent.handlers, propagate=agent.propagate)
            agent.handlers, agent.propagate = [*files, logging.NullHandler()], False
        yield


@contextmanager
def _survivors_ended(launched: _Launched[Result]) -> Iterator[None]:
    """Kill the other processes some seconds after one has failed: those that are suspended or hang ignore SIGTERM.

    The agent itself hangs if the machine with the store can't be reached any more; then end the launcher.
    """
    shared_state, is_over = launched.shared_state, threading.Event()
    dist = launched.ready.config.dist
    seconds_to_give_up = _SECONDS_TO_GIVE_UP + (dist.rendezvous_timeout_seconds if dist.max_restarts else 0)

    def watch() -> None:
        failed_at, are_killed = None, False
        while not is_over.wait(_TICK_SECONDS):
            if not shared_state.any_failed:  # also after a restart by the agent
                failed_at, are_killed = None, False
                continue
            failed_at = failed_at or time.monotonic()
            seconds = time.monotonic() - failed_at
            if seconds > _SECONDS_TO_END and not are_killed:
                are_killed = True
                for local_rank, pid in enumerate(shared_state.pids):
                    _kill_child(pid, local_rank)
            if seconds > _SECONDS_TO_END + seconds_to_give_up:
                _give_up(launched)

    thread = threading.Thread(target=watch, name="survivors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _kill_child(pid: int, local_rank: int) -> None:
    if not pid:
        return  # it has not started yet
    try:
        is_running = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return  # the agent has reaped it; another process may have the number by now
    if is_running:
        LOGGER.warning("local rank %d (process %d) hangs: it did not end on SIGTERM and is killed", local_rank, pid)
        os.kill(pid, signal.SIGKILL)


def _concluded(outcomes: list[RankOutcome[Result]]) -> Result:
    stopped = next((outcome.stopped for outcome in outcomes if outcome.stopped is not None), None)
    if stopped is not None:
        raise StoppedOnRequest(stopped)
    result = outcomes[0].result
    assert result is not None, "a process that was not stopped has a result"
    return result


def _explained(error: ChildFailedError, launched: _Launched[Result]) -> RunnerError:
    """The error of the process that failed first; run.json and the log get it too."""
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    folder = launched.shared_state.folder
    record = first_failure([launched.assignment.records])
    if (record is None or record.is_echo) and failure.exitcode < 0:
        record = _unexplained(rank, failure, folder)
    if record is None:
        record = _unexplained(rank, failure, folder)
    return _recorded(record, launched)


def _recorded(record: FailureRecord, launched: _Launched[Result]) -> RunnerError:
    folder = launched.shared_state.folder
    if folder is not None:
        correct_record(folder, record, launched.work.num_earlier)
    log_failure(record)
    return record.as_error()


def _reported(error: RunnerError, launched: _Launched[Result]) -> RunnerError:
    if launched.shared_state.folder is not None:
        launched.work.explain_failure(launched.shared_state.folder, launched.ready.splits)
    return error


def _give_up(launched: _Launched[Result]) -> None:
    """Report the failure and end this process, whose main thread waits for an answer that will never come."""
    record = first_failure([launched.assignment.records])
    if record is not None:
        error = _recorded(record, launched)
        console.show_error(error)
        shutil.rmtree(launched.assignment.records, ignore_errors=True)
        os._exit(error.exit_code)


def _unexplained(rank: int, failure: ProcessFailure, folder: Path | None) -> FailureRecord:
    log = run_folder.RunFolder(folder).log_file(rank) if folder is not None else None
    return FailureRecord(
        rank=rank,
        host=socket.gethostname(),
        name=RankFailedError.__name__,
        message=f"was killed by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode < 0
        else f"ended by itself with exit code {failure.exitcode}",
        trace="",
        exit_code=RankFailedError.exit_code,
        is_echo=False,
        moment=time.time(),
        log=str(log) if log else None,
    )
