"""One of several processes of a run: it joins the process group, agrees on the run folder, and does the work."""

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

import runner.training.train  # noqa: F401 - works import it later, when the watchdog would count these seconds
from runner.base.console import LOGGER, log_to_file
from runner.base.errors import DeviceError, LaunchError, RunnerError, StalledError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.dist.addresses import address_towards, find_endpoint, interface_of, loopback_interface, use_interface
from runner.dist.collectives import DistContext
from runner.dist.device import check_device, choose_backend, choose_device, choose_num_threads, count_cuda_devices
from runner.dist.watchdog import Watchdog
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, correct_record, record_failure, record_lost_owner
from runner.launch.ranks.grace import exit_after_grace
from runner.launch.ranks.output import redirected_output
from runner.launch.ranks.rendezvous import (
    RankAssignment,
    RankFacts,
    assign_ranks,
    form_group,
    gather_facts,
    open_rendezvous_store,
)
from runner.run import run_folder
from runner.training.attempt import Result, Work


@dataclass(frozen=True, kw_only=True)
class RankProcess(Generic[Result]):
    """One of several processes that train or evaluate together, before it is connected to the others."""

    ready: Ready
    work: Work[Result]
    folder: Path | None
    """The output folder, where it was made before the processes; else rank 0 makes it."""
    rank: int
    world_size: int
    local_rank: int | None
    """None where the program that started the processes does not give one."""
    url: str
    """URL of the rendezvous."""
    stop: StopRequest
    on_folder: Callable[[Path], object]
    """Called with the folder that has this machine's logs."""
    on_failure: Callable[[FailureRecord], object]
    """Called with the reason before this process ends itself because it hangs."""

    def run(self) -> Result:
        """Do the work together with the other processes.

        Raises:
            StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1 to any process, with everything saved.
            RunnerError: the named error that ended the run.
        """
        config = self.ready.config
        store = open_rendezvous_store(self.url, self.rank, self.world_size, config.dist.rendezvous_timeout_seconds)
        dist = self._join(store)
        run_dir = self._agree_on_folder(dist, store)
        log = run_folder.RunFolder(run_dir).log_file(self.rank)
        watchdog = Watchdog(
            parent=os.getppid(),
            stall_seconds=config.dist.stall_timeout_seconds,
            on_stall=lambda silence: self._report_end(log, self._stalled(log, silence)),
        )
        dist = replace(dist, heartbeat=watchdog.heartbeat)
        with _group_destroyed(), ExitStack() as stack:
            stack.enter_context(redirected_output(log, shows_messages=dist.is_main))
            stack.enter_context(watchdog.running())
            stack.enter_context(
                exit_after_grace(
                    config, self.stop, log, self.work.advice_if_killed, lambda error: self._report_end(log, error)
                )
            )
            if dist.mode == "adopted":
                LOGGER.info("launch      %s (%s)", dist.mode, self.ready.plan.reason)
            _share_cores(dist)
            return self._run_work(dist, run_dir, log)

    def _join(self, store: Store) -> DistContext:
        """Compare config and data with the other processes at this store, and form the process group."""
        config, seconds = self.ready.config, self.ready.config.dist.rendezvous_timeout_seconds
        facts = _with_device(gather_facts(config, self.ready.splits), config, self.local_rank, self.world_size)
        assigned, space = assign_ranks(store, self.rank, self.world_size, facts, seconds)
        if self.local_rank is not None:
            assigned = replace(assigned, local_rank=self.local_rank)
        use_interface(_interface(config, assigned))
        device = _device(config, assigned.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        control = form_group(
            space,
            self.rank,
            self.world_size,
            backend=choose_backend(config, device),
            device=device,
            seconds=config.dist.timeout_seconds,
        )
        return DistContext(
            rank=self.rank,
            local_rank=assigned.local_rank,
            world_size=self.world_size,
            num_sharing_cores=assigned.num_sharing_cores,
            device=device,
            mode=self.ready.plan.mode,
            control=control,
        )

    def _agree_on_folder(self, dist: DistContext, store: Store) -> Path:
        """Rank 0 makes the run folder and broadcasts its path; a machine that can't see it makes one for its logs."""
        output_dir = Path(self.ready.config.output_dir)
        made = Path()
        if dist.is_main:
            made = self.folder or _made_once(store, output_dir)
            (made / "logs").mkdir(exist_ok=True)
        shared, host = dist.broadcast_object((str(made.resolve()), socket.gethostname()))
        folder = Path(shared)
        if not (folder / "logs").is_dir():
            folder = output_dir.resolve() / Path(*folder.parts[-2:])
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            with log_to_file(run_folder.RunFolder(folder).log_file(self.rank)):
                LOGGER.info("run folder  %s on %s; on this machine only logs, in %s", shared, host, folder / "logs")
        self.on_folder(folder)
        return folder

    def _run_work(self, dist: DistContext, run_dir: Path, log: Path) -> Result:
        """Do the work; write an error file where the launcher and the other machines look for it if it fails."""
        try:
            # After a restart by the elastic agent, the run has begun already.
            has_begun = dist.broadcast_object(dist.is_main and (run_dir / "run.json").is_file())
            work = self.work.continued() if has_begun else self.work
            return work.run(self.ready.config, run_dir, self.ready.splits, dist=dist, stop=self.stop)
        except StoppedOnRequest:
            raise
        except Exception as error:
            record = record_failure(self.rank, error, log)
            record.write(log.parent)
            if dist.is_main and record.is_echo:
                correct_record(run_dir, record, self.work.num_earlier)
            if not dist.is_main and record.is_echo:
                record_lost_owner(run_dir, record)
            raise

    def _stalled(self, log: Path, silence: float) -> StalledError:
        return StalledError(
            f"rank {self.rank} on {socket.gethostname()} made no step for {silence:.0f} seconds "
            f"(dist.stall_timeout_seconds): it, or another process that it waits for, hangs; its stacks are in {log}"
        )

    def _report_end(self, log: Path, error: RunnerError) -> None:
        """Write down why this process is about to end itself."""
        record = record_failure(self.rank, error, log)
        LOGGER.error("%s", error)
        record.write(log.parent)
        self.on_failure(record)
        if self.rank == 0:
            correct_record(log.parents[1], record, self.work.num_earlier)


@contextmanager
def _group_destroyed() -> Iterator[None]:
    """Destroy the process group at the end, except after an error, when other processes may never answer."""
    try:
        yield
    except StoppedOnRequest:  # which all processes raise in the same step
        torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


def _interface(config: Config, assigned: RankAssignment) -> str | None:
    """The network interface for gloo and NCCL; None leaves the choice to them."""
    if assigned.is_one_machine:
        return loopback_interface()
    if config.dist.endpoint is None:
        return None
    endpoint = find_endpoint(*config.dist.endpoint, config.dist.rendezvous_timeout_seconds)
    own = address_towards(endpoint.host) if endpoint.own is None else endpoint.own
    return interface_of(own)


def _device(config: Config, local_rank: int) -> torch.device:
    """The device of this process. Where SLURM shows each process only one GPU, that is number 0."""
    num_gpus = count_cuda_devices()
    return choose_device(config.trainer, local_rank % num_gpus if num_gpus else 0)


def _with_device(facts: RankFacts, config: Config, local_rank: int | None, world_size: int) -> RankFacts:
    """Add this process's device, or its error: a process group of different devices would hang."""
    try:
        device = _device(config, local_rank or 0)
        # The preflight checked this on the machine that starts the processes; another machine may lack a GPU.
        mistakes = check_device(config, device, world_size)
        if mistakes:
            raise mistakes[0]
    except DeviceError as error:
        return replace(facts, refusal=(error.name, str(error)))
    # Without a given local rank, this process may be assigned another GPU later.
    is_known = local_rank is not None or count_cuda_devices() == 1
    may_not_share = (
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "0" and choose_backend(config, device) == "nccl"
    )
    gpu = ""
    if device.type == "cuda" and is_known and may_not_share:
        try:
            gpu = str(torch.cuda.get_device_properties(device).uuid)
        except RuntimeError as error:
            return replace(facts, refusal=(DeviceError.__name__, f"{device} can't be used: {error}"))
    return replace(facts, device=device.type, gpu=gpu)


def _share_cores(dist: DistContext) -> None:
    """Divide the cores among the processes of this machine, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        LOGGER.info("threads     %d per process (OMP_NUM_THREADS)", torch.get_num_threads())
        return
    torch.set_num_threads(choose_num_threads(dist.num_sharing_cores))
    LOGGER.info(
        "threads     %d per process, of which %d share these cores", torch.get_num_threads(), dist.num_sharing_cores
    )


def _made_once(store: Store, output_dir: Path) -> Path:
    """A new run folder, or after a restart by an elastic agent, the run folder of the attempts before.

    The path is kept in the agent's store, which outlives the processes.

    Raises:
        LaunchError: the folder is on another machine, which had rank 0 before.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return run_folder.make_run_folder(output_dir)
    key = f"runner/folder of {run_id}"
    if not store.check([key]):
        made = run_folder.make_run_folder(output_dir)
        store.set(key, json.dumps([str(made), socket.gethostname()]))
        return made
    kept, host = json.loads(store.get(key))
    if not (Path(kept) / "logs").is_dir():
        raise LaunchError(
            f"the run is in {kept} on {host}, but rank 0 was restarted on {socket.gethostname()}, which has no such "
            f"folder; resume the run on {host}: python -m runner resume run={kept}"
        )
    return Path(kept)
