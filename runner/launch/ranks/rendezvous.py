"""One process joins the others: they connect to a store, compare what they are about to do, and form the group.

torch.distributed's own rendezvous brings the processes together, whatever has started them. Each tells rank 0 its
machine, cores and config; rank 0 validates them and answers all. A process that was refused before says so here, and
all end with that.

The store may be older than the processes: that of an elastic agent outlives restarts, which the agents of two machines
count differently, and a file may be left from a job that crashed. So each rank 0 opens a space of its own in it, and
a process believes the answer that names its token.
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
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import DistError, PrefixStore, ProcessGroup  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from runner.base.errors import LaunchError, RunnerError, named
from runner.base.time_limit import within
from runner.base.untrusted import UntrustedFileError, parse_json, printable
from runner.config.schema import Config
from runner.config.schema.effects import effect_of
from runner.data.splits import Splits
from runner.dist.addresses import network_id
from runner.dist.stores import open_store

_MOST_SECONDS_TO_LEAVE = 10.0
_SECONDS_TO_ANSWER = 5.0  # beyond the longest wait, for what waits to say so by itself
_POLL_SECONDS = 0.1
_OPEN_SPACE = "runner/open"
_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a process tells before anything begins."""

    host: str
    cores: Sequence[int]
    """Cores that the process may use."""
    config: Mapping[str, Any] | None
    """All values by full key; None where the process was refused before it had a config."""
    data: str
    """Digest of the data set as this process sees it."""
    device: str = ""
    """Its kind: cpu, cuda or mps."""
    gpu: str = ""
    """Identifier of the GPU that the process has to itself; empty where it shares, or is not known yet."""
    network: str = ""
    """The same for processes that share a loopback interface; empty where that can't be told."""
    refusal: tuple[str, str] | None = None
    """Name and message of the error by which the process was refused."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of this process and no other, be it of the same rank."""


@dataclass(frozen=True, kw_only=True)
class RankAssignment:
    """What rank 0 answers to a process."""

    local_rank: int
    """Number among the processes of its machine."""
    local_world_size: int
    num_sharing_cores: int
    """Processes of its machine that may use one of its cores, itself included."""
    is_one_machine: bool = False
    """Whether all processes share a loopback interface."""


def facts_of(config: Config | None, splits: Splits | None, refusal: RunnerError | None = None) -> Facts:
    """The facts of this process."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return Facts(
        host=socket.gethostname(),
        cores=sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1)),
        config=None if config is None else _flat(config.model_dump(mode="json")),
        data="" if splits is None else _digest(splits),
        network=network_id(),
        refusal=None if refusal is None else (refusal.name, str(refusal)),
    )


def connect(url: str, rank: int, world_size: int, seconds: float) -> Store:
    """Connect to the others' store, by env://, tcp://host:port or file:///path.

    Raises:
        LaunchError: when it does not answer in time, or can't be opened.
    """
    try:
        store = within(seconds + _SECONDS_TO_ANSWER, lambda: open_store(url, rank, world_size, seconds))
    except (DistError, RuntimeError, ValueError, OSError) as error:  # TimeoutError is an OSError
        reason = str(error).strip().splitlines()[0]
        where = url
        if url == "env://":
            where = (
                f"env:// (MASTER_ADDR = {os.environ.get('MASTER_ADDR')}, MASTER_PORT = {os.environ.get('MASTER_PORT')})"
            )
        raise LaunchError(
            f"rank {rank} of {world_size} can't meet the others at {where} within {seconds:g} seconds "
            f"(dist.rendezvous_timeout_seconds): {reason}. Rank 0 opens this port on its own machine: is the host the "
            "one of rank 0, is the port free there, and does no firewall close it?"
        ) from error
    return store


def check_in(store: Store, rank: int, world_size: int, facts: Facts, seconds: float) -> tuple[RankAssignment, Store]:
    """Tell rank 0 the facts of this process and wait for its answer; every process must call it.

    Returns:
        Where this process sits, and the part of the store that belongs to these processes.

    Raises:
        LaunchError: when processes are missing after `seconds`, or differ in config or data.
        RunnerError: by which any of the processes was refused.
    """

    def ask() -> tuple[Store, dict[str, Any]]:
        is_first = rank == 0
        space, answer = (
            _answered(store, world_size, facts, seconds) if is_first else _asked(store, rank, facts, seconds)
        )
        _leave(store, space, rank, world_size)
        return space, answer

    try:
        space, answer = within(seconds + _MOST_SECONDS_TO_LEAVE + _SECONDS_TO_ANSWER, ask)
    except TimeoutError as error:
        raise LaunchError(
            f"rank {rank} of {world_size} had met the others, who do not answer any more ({error}): is rank 0's "
            "process or machine stopped?"
        ) from error
    except (UntrustedFileError, UnicodeDecodeError, TypeError, KeyError, IndexError) as error:
        raise LaunchError(
            f"rank {rank} of {world_size} was told by the store what no process of a run tells "
            f"({printable(str(error))}): somebody else writes there; see who reaches this network"
        ) from error
    if "refusal" in answer:
        name, message = answer["refusal"]
        raise named(name, message) or LaunchError(f"{name}: {message}")
    return RankAssignment(**answer["rank_assignments"][rank]), space


def _answered(store: Store, world_size: int, facts: Facts, seconds: float) -> tuple[Store, dict[str, Any]]:
    """As rank 0: open a space, judge what all tell there, and answer."""
    name = secrets.token_hex(8)
    space = PrefixStore(f"runner/{name}", store)
    space.set("facts/0", json.dumps(vars(facts)))
    store.set(_OPEN_SPACE, name)
    answer = _judged(space, world_size, seconds)
    space.set("answer", json.dumps(answer))
    return space, answer


def _asked(store: Store, rank: int, facts: Facts, seconds: float) -> tuple[Store, dict[str, Any]]:
    """As any other rank: tell the facts wherever rank 0 is, until it has answered this very process."""
    deadline, told = time.monotonic() + seconds, ""
    space = store
    while time.monotonic() <= deadline:
        name = store.get(_OPEN_SPACE).decode() if store.check([_OPEN_SPACE]) else told
        if name != told:
            told, space = name, PrefixStore(f"runner/{name}", store)
            space.set(f"facts/{rank}", json.dumps(vars(facts)))
        if told and space.check(["answer"]):
            answer = _read(space, "answer")
            if "refusal" in answer or answer["tokens"][rank] == facts.token:
                return space, answer
        time.sleep(_POLL_SECONDS)
    raise LaunchError(
        f"rank 0 did not answer within {seconds:g} seconds (dist.rendezvous_timeout_seconds); rank {rank} was there"
    )


def _read(space: Store, key: str) -> dict[str, Any]:
    told = parse_json(space.get(key).decode(), key)
    if not isinstance(told, dict):
        raise UntrustedFileError(f"{key} is no object")
    return told


def _leave(store: Store, space: Store, rank: int, world_size: int) -> None:
    """Rank 0, in which the store may live, stays until all have read its answer, unless one of them has died."""
    num_readers = space.add("readers", 1)
    if rank != 0:
        return
    deadline = time.monotonic() + _MOST_SECONDS_TO_LEAVE
    while num_readers < world_size and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        num_readers = space.add("readers", 0)
    store.delete_key(_OPEN_SPACE)  # whoever comes from now on belongs to others


def _judged(space: Store, world_size: int, seconds: float) -> dict[str, Any]:
    keys = [f"facts/{rank}" for rank in range(world_size)]
    deadline = time.monotonic() + seconds
    pending = dict(enumerate(keys))
    everyone: dict[int, Facts] = {}
    while pending:
        for rank, key in list(pending.items()):
            if not space.check([key]):
                continue
            everyone[rank] = Facts(**_read(space, pending.pop(rank)))
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
        f"{world_size - len(missing)} of {world_size} processes came within {seconds:g} seconds "
        f"(dist.rendezvous_timeout_seconds); missing: rank {ranks}"
    )


def _shown_refusal(rank: int, facts: Facts) -> tuple[str, str]:
    assert facts.refusal is not None
    name, message = facts.refusal
    return name, f"{message} [rank {rank} on {facts.host}]"


def _difference(everyone: Sequence[Facts]) -> str | None:
    first = everyone[0]
    for rank, facts in enumerate(everyone):
        if facts.config != first.config:
            assert facts.config is not None and first.config is not None, "a process without a config was refused"
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
                    f"{'; '.join(shown[:_SHOWN_DIFFERENCES])}{more}. Start all with the same command"
                )
        if facts.data != first.data:
            return (
                f"rank {rank} on {facts.host} sees another data set than rank 0 on {first.host} (classes, numbers of "
                "images or labels differ); give both the same files"
            )
    return _clash(everyone)


def _clash(everyone: Sequence[Facts]) -> str | None:
    """Why the devices of these processes don't go together."""
    first, takers = everyone[0], dict[str, int]()
    for rank, facts in enumerate(everyone):
        if facts.device != first.device:
            return (
                f"rank {rank} on {facts.host} would compute on {facts.device}, rank 0 on {first.host} on "
                f"{first.device}, and the two can't exchange gradients; mend or leave out the machine whose GPU or "
                "driver does not work (doctor says more), or set trainer.device=cpu for all"
            )
        other = takers.setdefault(facts.gpu, rank) if facts.gpu else rank
        if other != rank:
            return (
                f"rank {other} on {everyone[other].host} and rank {rank} on {facts.host} would share the GPU "
                f"{facts.gpu}, which NCCL refuses; start as many processes per machine as it has GPUs, or set "
                "dist.backend=gloo"
            )
    return None


def _rank_assignments(everyone: Sequence[Facts]) -> list[RankAssignment]:
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
    """Let the processes exchange tensors; every process must call it.

    Args:
        store: the part of it that belongs to these processes.
        rank: of this process.
        world_size: number of processes.
        backend: nccl or gloo.
        device: of this process.
        seconds: longest wait in one exchange.

    Returns:
        A second group, of gloo, for small messages between the CPUs.
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


def with_local_rank(own: RankAssignment, local_rank: int | None) -> RankAssignment:
    """With the local rank that the starter has given, where it has given one."""
    return own if local_rank is None else replace(own, local_rank=local_rank)
