"""The rendezvous of a run's processes: they connect to a store, compare config and data, and form the process group.

The store is torch.distributed's own, whatever started the processes. Each process writes its machine, cores and config
there; rank 0 compares them and answers with the rank assignments, or with an error that all processes raise. A process
that failed its checks before writes that error instead.

The store may be older than the processes: that of an elastic agent outlives restarts, and a file may be left over from
a job that crashed. So each rank 0 writes under a new prefix, and a process accepts only an answer with its own token.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import DistError, PrefixStore, ProcessGroup  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from runner.base.errors import LaunchError, RunnerError, error_named
from runner.base.stop import run_with_timeout
from runner.base.untrusted import UntrustedFileError, parse_json, printable
from runner.config.schema import Config
from runner.config.schema.checks.effects import effect_of
from runner.data.splits import Splits
from runner.dist.addresses import network_id
from runner.dist.stores import open_store

_MOST_SECONDS_TO_LEAVE = 10.0
_SECONDS_TO_ANSWER = 5.0  # beyond the longest wait, so that whatever waits raises its own error first
_POLL_SECONDS = 0.1
_OPEN_SPACE = "runner/open"
_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What a process writes to the store, for rank 0 to compare."""

    host: str
    cores: Sequence[int]
    """Cores that the process may use."""
    config: Mapping[str, Any] | None
    """All values by full key; None where the process failed before it had a config."""
    data: str
    """Digest of the data set as this process sees it."""
    device: str = ""
    """cpu, cuda or mps."""
    gpu: str = ""
    """Identifier of the GPU that no other process may use; empty where GPUs may be shared, or it is not known yet."""
    network: str = ""
    """Identifier of the network namespace, equal for processes that share a loopback interface; empty if unknown."""
    refusal: tuple[str, str] | None = None
    """Name and message of the error that ended the process before the rendezvous."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Unique to this process, even among processes of the same rank."""


@dataclass(frozen=True, kw_only=True)
class RankAssignment:
    """The assignment of one process, as rank 0 answers it."""

    local_rank: int
    """Number among the processes of the machine."""
    local_world_size: int
    num_sharing_cores: int
    """Processes of the machine, itself included, that may run on one of its cores."""
    is_one_machine: bool = False
    """Whether all processes share a loopback interface."""


def gather_facts(config: Config | None, splits: Splits | None, refusal: RunnerError | None = None) -> RankFacts:
    """The facts of this process."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return RankFacts(
        host=socket.gethostname(),
        cores=sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1)),
        config=None if config is None else _flat(config.model_dump(mode="json")),
        data="" if splits is None else _digest(splits),
        network=network_id(),
        refusal=None if refusal is None else (refusal.name, str(refusal)),
    )


def open_rendezvous_store(url: str, rank: int, world_size: int, seconds: float) -> Store:
    """Connect to the processes' store, by env://, tcp://host:port or file:///path.

    Raises:
        LaunchError: it does not answer in time, or can't be opened.
    """
    try:
        store = run_with_timeout(seconds + _SECONDS_TO_ANSWER, lambda: open_store(url, rank, world_size, seconds))
    except (DistError, RuntimeError, ValueError, OSError) as error:  # TimeoutError is an OSError
        reason = str(error).strip().splitlines()[0]
        where = url
        if url == "env://":
            where = (
                f"env:// (MASTER_ADDR = {os.environ.get('MASTER_ADDR')}, MASTER_PORT = {os.environ.get('MASTER_PORT')})"
            )
        raise LaunchError(
            f"rank {rank} of {world_size} can't connect to the others at {where} within {seconds:g} seconds "
            f"(dist.rendezvous_timeout_seconds): {reason}. Rank 0 opens this port on its own machine: is the host the "
            "one of rank 0, is the port free there, and does no firewall close it?"
        ) from error
    return store


def assign_ranks(
    store: Store, rank: int, world_size: int, facts: RankFacts, seconds: float
) -> tuple[RankAssignment, Store]:
    """Send the facts of this process to rank 0 and wait for its answer; every process must call it.

    Returns:
        The assignment of this process, and the part of the store that belongs to these processes.

    Raises:
        LaunchError: processes are missing after `seconds`, or differ in config or data.
        RunnerError: the error that ended another process before the rendezvous.
    """

    def ask() -> tuple[Store, dict[str, Any]]:
        is_first = rank == 0
        space, answer = (
            _answered(store, world_size, facts, seconds) if is_first else _asked(store, rank, facts, seconds)
        )
        _leave(store, space, rank, world_size)
        return space, answer

    try:
        space, answer = run_with_timeout(seconds + _MOST_SECONDS_TO_LEAVE + _SECONDS_TO_ANSWER, ask)
    except TimeoutError as error:
        raise LaunchError(
            f"rank {rank} of {world_size} was connected to the others, which do not answer any more ({error}): is "
            "rank 0's process or machine stopped?"
        ) from error
    except (UntrustedFileError, UnicodeDecodeError, TypeError, KeyError, IndexError) as error:
        raise LaunchError(
            f"rank {rank} of {world_size} read from the store what no process of a run writes "
            f"({printable(str(error))}): another program writes there; check who can reach this network"
        ) from error
    if "refusal" in answer:
        name, message = answer["refusal"]
        raise error_named(name, message) or LaunchError(f"{name}: {message}")
    return RankAssignment(**answer["rank_assignments"][rank]), space


def _answered(store: Store, world_size: int, facts: RankFacts, seconds: float) -> tuple[Store, dict[str, Any]]:
    """As rank 0: announce a new prefix, compare the facts that all processes write there, and answer."""
    name = secrets.token_hex(8)
    space = PrefixStore(f"runner/{name}", store)
    space.set("facts/0", json.dumps(vars(facts)))
    store.set(_OPEN_SPACE, name)
    answer = _answer_to_all(space, world_size, seconds)
    space.set("answer", json.dumps(answer))
    return space, answer


def _asked(store: Store, rank: int, facts: RankFacts, seconds: float) -> tuple[Store, dict[str, Any]]:
    """As any other rank: write the facts under the newest prefix until an answer names this process's token."""
    deadline, prefix = time.monotonic() + seconds, ""
    space = store
    while time.monotonic() <= deadline:
        name = store.get(_OPEN_SPACE).decode() if store.check([_OPEN_SPACE]) else prefix
        if name != prefix:
            prefix, space = name, PrefixStore(f"runner/{name}", store)
            space.set(f"facts/{rank}", json.dumps(vars(facts)))
        if prefix and space.check(["answer"]):
            answer = _read(space, "answer")
            if "refusal" in answer or answer["tokens"][rank] == facts.token:
                return space, answer
        time.sleep(_POLL_SECONDS)
    raise LaunchError(
        f"rank 0 did not answer within {seconds:g} seconds (dist.rendezvous_timeout_seconds) to rank {rank}"
    )


def _read(space: Store, key: str) -> dict[str, Any]:
    value = parse_json(space.get(key).decode(), key)
    if not isinstance(value, dict):
        raise UntrustedFileError(f"{key} is no object")
    return value


def _leave(store: Store, space: Store, rank: int, world_size: int) -> None:
    """Wait as rank 0, which may serve the store, until all have read the answer, or some seconds if one has died."""
    num_readers = space.add("readers", 1)
    if rank != 0:
        return
    deadline = time.monotonic() + _MOST_SECONDS_TO_LEAVE
    while num_readers < world_size and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        num_readers = space.add("readers", 0)
    store.delete_key(_OPEN_SPACE)  # later processes belong to another group


def _answer_to_all(space: Store, world_size: int, seconds: float) -> dict[str, Any]:
    keys = [f"facts/{rank}" for rank in range(world_size)]
    deadline = time.monotonic() + seconds
    pending = dict(enumerate(keys))
    everyone: dict[int, RankFacts] = {}
    while pending:
        for rank, key in list(pending.items()):
            if not space.check([key]):
                continue
            everyone[rank] = RankFacts(**_read(space, pending.pop(rank)))
            if everyone[rank].refusal is not None:
                return {"refusal": _shown_refusal(rank, everyone[rank])}
        if pending and time.monotonic() > deadline:
            missing = [rank for rank, key in pending.items() if not space.check([key])]
            return {"refusal": ("LaunchError", _shown_missing(missing, world_size, seconds))}
        if pending:
            time.sleep(_POLL_SECONDS)
    difference = _difference([everyone[rank] for rank in range(world_size)])
    if difference is not None:
        return {"refusal": ("LaunchError", difference)}
    rank_assignments = _rank_assignments([everyone[rank] for rank in range(world_size)])
    tokens = [everyone[rank].token for rank in range(world_size)]
    return {"rank_assignments": [vars(own) for own in rank_assignments], "tokens": tokens}


def _shown_missing(missing: list[int], world_size: int, seconds: float) -> str:
    ranks = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    return (
        f"{world_size - len(missing)} of {world_size} processes connected within {seconds:g} seconds "
        f"(dist.rendezvous_timeout_seconds); missing: rank {ranks}"
    )


def _shown_refusal(rank: int, facts: RankFacts) -> tuple[str, str]:
    assert facts.refusal is not None
    name, message = facts.refusal
    return name, f"{message} [rank {rank} on {facts.host}]"


def _difference(everyone: Sequence[RankFacts]) -> str | None:
    first = everyone[0]
    for rank, facts in enumerate(everyone):
        if facts.config != first.config:
            assert facts.config is not None and first.config is not None, "a process without a config has a refusal"
            keys = [
                key
                for key in {**first.config, **facts.config}
                if not effect_of(key).may_differ_between_machines and facts.config.get(key) != first.config.get(key)
            ]
            shown = [f"{key} = {facts.config.get(key)} there, {first.config.get(key)} here" for key in keys]
            if shown:
                more = f", and {len(shown) - _SHOWN_DIFFERENCES} more" if len(shown) > _SHOWN_DIFFERENCES else ""
                return (
                    f"rank {rank} on {facts.host} was started with another config than rank 0 on {first.host}: "
                    f"{'; '.join(shown[:_SHOWN_DIFFERENCES])}{more}. Start all processes with the same command"
                )
        if facts.data != first.data:
            return (
                f"rank {rank} on {facts.host} has another data set than rank 0 on {first.host} (classes, numbers of "
                "images or labels differ); give both the same files"
            )
    return _clash(everyone)


def _clash(everyone: Sequence[RankFacts]) -> str | None:
    """Why these processes can't form a process group with their devices; None where they can."""
    first, users = everyone[0], dict[str, int]()
    for rank, facts in enumerate(everyone):
        if facts.device != first.device:
            return (
                f"rank {rank} on {facts.host} would compute on {facts.device}, rank 0 on {first.host} on "
                f"{first.device}, and the two can't exchange gradients; repair or leave out the machine whose GPU or "
                "driver does not work (`doctor` says more), or set trainer.device=cpu for all"
            )
        other = users.setdefault(facts.gpu, rank) if facts.gpu else rank
        if other != rank:
            return (
                f"rank {other} on {everyone[other].host} and rank {rank} on {facts.host} would share the GPU "
                f"{facts.gpu}, which NCCL refuses; start as many processes per machine as it has GPUs, or set "
                "dist.backend=gloo"
            )
    return None


def _rank_assignments(everyone: Sequence[RankFacts]) -> list[RankAssignment]:
    on_host = Counter(facts.host for facts in everyone)
    networks = {facts.network for facts in everyone}
    seen: Counter[str] = Counter()
    rank_assignments = []
    for facts in everyone:
        cores = set(facts.cores)
        num_sharing = sum(other.host == facts.host and not cores.isdisjoint(other.cores) for other in everyone)
        rank_assignments.append(
            RankAssignment(
                local_rank=seen[facts.host],
                local_world_size=on_host[facts.host],
                num_sharing_cores=num_sharing,
                is_one_machine=len(networks) == 1 and "" not in networks,
            )
        )
        seen[facts.host] += 1
    return rank_assignments


def form_group(
    store: Store, rank: int, world_size: int, *, backend: str, device: torch.device, seconds: float
) -> ProcessGroup:
    """Form the process group; every process must call it.

    Args:
        store: the part of the store that belongs to these processes.
        rank: of this process.
        world_size: number of processes.
        backend: nccl or gloo.
        device: of this process.
        seconds: longest wait in one exchange.

    Returns:
        A second group, with gloo, for small messages between the CPUs.
    """
    timeout = timedelta(seconds=seconds)
    torch.distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    group = torch.distributed.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, ProcessGroup), "every process is a member"
    return group


def _digest(splits: Splits) -> str:
    digest = hashlib.sha256(json.dumps(splits.classes).encode())
    for source in (splits.train, splits.val):
        digest.update(str(len(source)).encode())
        digest.update(source.labels.tobytes())
    return digest.hexdigest()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
