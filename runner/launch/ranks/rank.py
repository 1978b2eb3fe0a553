"""The life of one process among many: meet, agree on the folder, do the work, and say how it ended."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

import torch
import torch.distributed
from torch.distributed.distributed_c10d import Store

import runner.training.train  # noqa: F401 - works import it when they begin, which would take seconds of the watch
from runner.base.console import LOGGER, log_to_file
from runner.base.errors import DeviceError, LaunchError, RunnerError, StalledError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.dist.addresses import address_towards, find_endpoint, interface_of, keep_to, loopback_interface
from runner.dist.collectives import DistContext
from runner.dist.device import check_sync_batchnorm, choose_device, choose_num_threads, count_gpus
from runner.dist.watchdog import Watchdog
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, correct_record, record_failure, record_lost_owner
from runner.launch.ranks.grace import ended_in_time
from runner.launch.ranks.output import output_to
from runner.launch.ranks.rendezvous import (
    Facts,
    RankAssignment,
    check_in,
    connect,
    facts_of,
    form_group,
    with_local_rank,
)
from runner.run import run_folder
from runner.training.work import Result, Work


@dataclass(frozen=True, kw_only=True)
class Task(Generic[Result]):
    """What all processes of a machine are given."""

    ready: Ready
    work: Work[Result]
    folder: Path | None
    """Where the work writes, where it was made before the processes; else rank 0 makes it."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """What a process knows of itself before it has met the others."""

    rank: int
    world_size: int
    local_rank: int | None
    """None where its starter does not say."""
    url: str
    """Where the processes meet."""
    stop: StopRequest
    on_folder: Callable[[Path], None]
    """Called with the folder that holds the logs of this machine."""
    on_failure: Callable[[FailureRecord], None]
    """Called with the reason when this process is about to end by itself because it stalls."""


def live(task: Task[Result], life: Life) -> Result:
    """Do a work as one of many processes.

    Raises:
        StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1 to any process, with everything saved.
        RunnerError: the named error that ended the run.
    """
    config, seconds = task.ready.config, task.ready.config.dist.rendezvous_timeout_seconds
    store = connect(life.url, life.rank, life.world_size, seconds)
    dist = _join(task, life, store)
    run_dir = _agree_on_folder(task, life, dist, store)
    log = run_folder.RunFolder(run_dir).log_file(life.rank)
    watchdog = Watchdog(
        parent=os.getppid(),
        stall_seconds=config.dist.stall_timeout_seconds,
        on_stall=lambda silence: _tell_end(task, life, log, _stalled(life, log, silence)),
    )
    dist = replace(dist, heartbeat=watchdog.heartbeat)
    with _group_destroyed(), ExitStack() as stack:
        stack.enter_context(output_to(log, shows_messages=dist.is_main))
        stack.enter_context(watchdog.running())
        stack.enter_context(
            ended_in_time(config, life.stop, log, task.work.if_cut, lambda error: _tell_end(task, life, log, error))
        )
        if dist.mode == "adopted":
            LOGGER.info("launch      %s (%s)", dist.mode, task.ready.plan.reason)
        _share_cores(dist)
        return _work_and_tell(task, life, dist, run_dir, log)


@contextmanager
def _group_destroyed() -> Iterator[None]:
    """Let go of the others at the end, unless it is an error: then some of them may never answer."""
    try:
        yield
    except StoppedOnRequest:  # which all hear of at once
        torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


def _join(task: Task[Result], life: Life, store: Store) -> DistContext:
    """Compare with the others, who meet at this store, and form the group with them."""
    config, seconds = task.ready.config, task.ready.config.dist.rendezvous_timeout_seconds
    facts = _with_device(facts_of(config, task.ready.splits), config, life.local_rank, life.world_size)
    given, space = check_in(store, life.rank, life.world_size, facts, seconds)
    own = with_local_rank(given, life.local_rank)
    keep_to(_interface(config, own))
    device = _device(config, own.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    control = form_group(
        space,
        life.rank,
        life.world_size,
        backend=_backend(config, device),
        device=device,
        seconds=config.dist.timeout_seconds,
    )
    return DistContext(
        rank=life.rank,
        local_rank=own.local_rank,
        world_size=life.world_size,
        num_sharing_cores=own.num_sharing_cores,
        device=device,
        mode=task.ready.plan.mode,
        control=control,
    )


def _interface(config: Config, assigned: RankAssignment) -> str | None:
    """Where gloo and NCCL shall listen; None where it is for them, or for whoever has started us, to choose."""
    if assigned.is_one_machine:
        return loopback_interface()
    if config.dist.endpoint is None:
        return None
    endpoint = find_endpoint(*config.dist.endpoint, config.dist.rendezvous_timeout_seconds)
    own = address_towards(endpoint.host) if endpoint.own is None else endpoint.own
    return interface_of(own)


def _work_and_tell(task: Task[Result], life: Life, dist: DistContext, run_dir: Path, log: Path) -> Result:
    """Do the work, and leave word of a failure where the launcher and the other machines look for it."""
    try:
        work = _work(task, run_dir, dist)
        return work.carry_out(task.ready.config, run_dir, task.ready.splits, dist=dist, stop=life.stop)
    except StoppedOnRequest:
        raise
    except Exception as error:
        record = record_failure(life.rank, error, log)
        record.write(log.parent)
        if dist.is_main and record.is_echo:
            correct_record(run_dir, record, task.work.num_earlier)
        if not dist.is_main and record.is_echo:
            record_lost_owner(run_dir, record)
        raise


def _work(task: Task[Result], run_dir: Path, dist: DistContext) -> Work[Result]:
    """A group that the agent has started again goes on where the one before it was."""
    has_begun = dist.is_main and (run_dir / "run.json").is_file()
    return task.work.continued() if dist.share_object(has_begun) else task.work


def _device(config: Config, local_rank: int) -> torch.device:
    """The device of this process. Where SLURM shows each process only its own GPU, that has number 0."""
    num_gpus = count_gpus()
    return choose_device(config.trainer, local_rank % num_gpus if num_gpus else 0)


def _with_device(facts: Facts, config: Config, local_rank: int | None, world_size: int) -> Facts:
    """With the device of this process, or its refusal: once they form a group, processes that differ hang."""
    try:
        device = _device(config, local_rank or 0)
        # The preflight has asked on the machine that starts them; of several machines another may lack a GPU.
        check_sync_batchnorm(config.dist, device, world_size)
    except DeviceError as error:
        return replace(facts, refusal=(error.name, str(error)))
    # Where nobody says which process of its machine this is, it may yet take another GPU.
    is_known = local_rank is not None or count_gpus() == 1
    needs_its_own = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "0" and _backend(config, device) == "nccl"
    gpu = ""
    if device.type == "cuda" and is_known and needs_its_own:
        try:
            gpu = str(torch.cuda.get_device_properties(device).uuid)
        except RuntimeError as error:
            return replace(facts, refusal=(DeviceError.__name__, f"{device} can't be used: {error}"))
    return replace(facts, device=device.type, gpu=gpu)


def _backend(config: Config, device: torch.device) -> str:
    if config.dist.backend != "auto":
        return config.dist.backend
    return "nccl" if device.type == "cuda" else "gloo"


def _share_cores(dist: DistContext) -> None:
    """Divide the cores among the processes of this machine, unless the user has said how many threads to use."""
    if "OMP_NUM_THREADS" in os.environ:
        LOGGER.info("threads     %d per process (OMP_NUM_THREADS)", torch.get_num_threads())
        return
    torch.set_num_threads(choose_num_threads(dist.num_sharing_cores))
    LOGGER.info(
        "threads     %d per process, of which %d share these cores", torch.get_num_threads(), dist.num_sharing_cores
    )


def _agree_on_folder(task: Task[Result], life: Life, dist: DistContext, store: Store) -> Path:
    """Rank 0 makes the run folder and tells its path; elsewhere, without a shared file system, one for logs is made."""
    output_dir = Path(task.ready.config.output_dir)
    made = Path()
    if dist.is_main:
        made = task.folder or _made_once(store, output_dir)
        (made / "logs").mkdir(exist_ok=True)
    told, host = dist.share_object((str(made.resolve()), socket.gethostname()))
    folder = Path(told)
    if not (folder / "logs").is_dir():
        folder = output_dir.resolve() / Path(*folder.parts[-2:])
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with log_to_file(run_folder.RunFolder(folder).log_file(life.rank)):
            LOGGER.info("run folder  %s on %s; on this machine only logs, in %s", told, host, folder / "logs")
    life.on_folder(folder)
    return folder


def _made_once(store: Store, output_dir: Path) -> Path:
    """A new run folder, or that of the earlier attempts of a group that an elastic agent has started again.

    The agent's store lives as long as the agent: what rank 0 leaves there, the next rank 0 finds.

    Raises:
        LaunchError: when the folder is on another machine, which was rank 0's.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return run_folder.make_new(output_dir)
    key = f"runner/folder of {run_id}"
    if not store.check([key]):
        made = run_folder.make_new(output_dir)
        store.set(key, json.dumps([str(made), socket.gethostname()]))
        return made
    told, host = json.loads(store.get(key))
    if not (Path(told) / "logs").is_dir():
        raise LaunchError(
            f"the run is in {told} on {host}, and rank 0, started again, is on {socket.gethostname()}, which has no "
            f"such folder; go on from there: python -m runner resume run={told}"
        )
    return Path(told)


def _stalled(life: Life, log: Path, silence: float) -> StalledError:
    return StalledError(
        f"rank {life.rank} on {socket.gethostname()} made no step for {silence:.0f} seconds "
        f"(dist.stall_timeout_seconds): it, or another process that it waits for, hangs; its stacks are in {log}"
    )


def _tell_end(task: Task[Result], life: Life, log: Path, error: RunnerError) -> None:
    """Leave word of why this process ends itself."""
    record = record_failure(life.rank, error, log)
    LOGGER.error("%s", error)
    record.write(log.parent)
    life.on_failure(record)
    if life.rank == 0:
        correct_record(log.parents[1], record, task.work.num_earlier)
