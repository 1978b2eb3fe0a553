"""Starts the processes of this machine by PyTorch's elastic agent, in this process, and says how they ended."""

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
from runner.base.children import children_kept_safe
from runner.base.console import LOGGER
from runner.base.errors import LaunchError, RankFailedError, RunnerError, StoppedOnRequest
from runner.launch.elastic.handed import Handed, no_room_for_temporary
from runner.launch.elastic.machines import Machines, meet_machines, one_machine
from runner.launch.elastic.rounds import BACKEND, NotRestartedError, asking
from runner.launch.elastic.shared_state import SharedState
from runner.launch.elastic.started import Assignment, Outcome, run_rank
from runner.launch.elastic.stop_requests import requests_forwarded
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, correct_record, first_failure, show
from runner.run import run_folder
from runner.training.work import Result, Work

_LOGGERS_OF_THE_AGENT = ("torch.distributed.elastic", "torch.multiprocessing")
# After a failure the others are asked to end, and must be gone within 10 seconds.
_SECONDS_TO_END = 5.0
_SECONDS_TO_GIVE_UP = 3.0
_TICK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class _Launched(Generic[Result]):
    """What is being done, and by which processes."""

    ready: Ready
    work: Work[Result]
    assignment: Assignment[Result]

    @property
    def shared_state(self) -> SharedState:
        """What the launcher and its processes share."""
        return self.assignment.shared_state


def launch_elastic(ready: Ready, folder: Path | None, work: Work[Result]) -> Result:
    """Do a work in as many processes as the plan says, started here.

    Raises:
        StoppedOnRequest: when the run was stopped, with everything saved.
        LaunchError: when the machines can't meet.
        OutputError: when temporary files, or the run folder, can't be written.
        RunnerError: the named error of the process that failed first; RankFailedError where it has no name.
    """
    plan, config = ready.plan, ready.config
    shared_state = SharedState(plan.procs_per_node)
    with ExitStack() as stack:
        stack.enter_context(children_kept_safe())
        stack.enter_context(requests_forwarded(shared_state))
        records, what = stack.enter_context(_records()), stack.enter_context(Handed((ready, work)))
        machines = meet_machines(config, plan) if plan.num_nodes > 1 else one_machine()
        if plan.num_nodes == 1:
            folder = folder or run_folder.make_new(Path(config.output_dir))
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
            outcomes: dict[int, Outcome[Result]] = elastic_launch(_agent_config(launched, machines), run_rank)(
                assignment
            )
        except ChildFailedError as error:
            raise _reported(_explained(error, launched), launched) from None
        except (NotRestartedError, RendezvousError, SignalException, DistError) as error:
            # Where processes of this machine have failed before, they say more: the run has ended, here or elsewhere.
            record = first_failure([records])
            if record is None:
                raise LaunchError(f"the elastic agent gave up: {error}") from error
            raise _reported(_told(record, launched), launched) from None
        return _concluded(list(outcomes.values()))


@contextmanager
def _records() -> Iterator[Path]:
    """A folder for the error files of the processes."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="runner-"))
    except OSError as error:
        raise no_room_for_temporary(error) from error
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
        rdzv_configs=asking(
            machines,
            dist.rendezvous_timeout_seconds,
            may_begin=lambda: not launched.shared_state.has_failed_finally,
            on_begin=lambda: _forget_failures(launched),
        ),
        local_addr=machines.address,
        max_restarts=dist.max_restarts,
        monitor_interval=0.1,
        start_method="spawn",  # CUDA does not survive a fork, and threads of torch neither
        signals_to_handle="SIGQUIT",  # the agent would take a request to stop for an order to end at once
    )


def _forget_failures(launched: _Launched[Result]) -> None:
    """What an attempt has left does not explain the end of the next one."""
    launched.shared_state.forget()
    for left_over in launched.assignment.records.glob("rank_*.error.json"):
        left_over.unlink()


@contextmanager
def _log(folder: Path | None, shared_state: SharedState) -> Iterator[None]:
    """Keep the launcher's messages, and only there those of the elastic agent, in the run folder.

    Of several machines each has a file of its own, which is written once the processes have agreed on the folder.
    """
    with ExitStack() as stack:
        if folder is not None:
            (folder / "logs").mkdir(exist_ok=True)
            stack.enter_context(console.log_to_file(folder / "logs" / "launcher.log"))
        else:
            kept = stack.enter_context(console.log_kept())
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
    """Kill what is left some seconds after a process has failed: one that is stopped or hangs heeds no SIGTERM.

    The agent itself hangs where the machine of the rendezvous can't be reached any more: then end this process.
    """
    shared_state, is_over = launched.shared_state, threading.Event()
    dist = launched.ready.config.dist
    seconds_to_give_up = _SECONDS_TO_GIVE_UP + (dist.rendezvous_timeout_seconds if dist.max_restarts else 0)

    def watch() -> None:
        failed_at, are_killed = None, False
        while not is_over.wait(_TICK_SECONDS):
            if not shared_state.has_failed:  # or not any more: the agent has begun another attempt
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
        return  # It has not begun to live.
    try:
        is_running = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return  # The agent has seen its end already; the number may be somebody else's by now.
    if is_running:
        LOGGER.warning("local rank %d (process %d) hangs: it did not end when told to, and is killed", local_rank, pid)
        os.kill(pid, signal.SIGKILL)


def _concluded(outcomes: list[Outcome[Result]]) -> Result:
    stopped = next((outcome.stopped for outcome in outcomes if outcome.stopped is not None), None)
    if stopped is not None:
        raise StoppedOnRequest(stopped)
    result = outcomes[0].result
    assert result is not None, "a process that was not stopped has a result"
    return result


def _explained(error: ChildFailedError, launched: _Launched[Result]) -> RunnerError:
    """The failure that came first, told last; run.json says so too."""
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    folder = launched.shared_state.folder
    record = first_failure([launched.assignment.records])
    if (record is None or record.is_echo) and failure.exitcode < 0:
        record = _without_words(rank, failure, folder)
    if record is None:
        record = _without_words(rank, failure, folder)
    return _told(record, launched)


def _told(record: FailureRecord, launched: _Launched[Result]) -> RunnerError:
    folder = launched.shared_state.folder
    if folder is not None:
        correct_record(folder, record, launched.work.num_earlier)
    show(record)
    return record.as_error()


def _reported(error: RunnerError, launched: _Launched[Result]) -> RunnerError:
    if launched.shared_state.folder is not None:
        launched.work.explain_failure(launched.shared_state.folder, launched.ready.splits)
    return error


def _give_up(launched: _Launched[Result]) -> None:
    """Say how the run ended and end this process, whose main thread waits for an answer that will not come."""
    record = first_failure([launched.assignment.records])
    if record is not None:
        error = _told(record, launched)
        console.show_error(error)
        shutil.rmtree(launched.assignment.records, ignore_errors=True)
        os._exit(error.exit_code)


def _without_words(rank: int, failure: ProcessFailure, folder: Path | None) -> FailureRecord:
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
