"""The place of a process among those of a run, and the collective operations that training needs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_INT64_MAX = torch.iinfo(torch.int64).max
# The argument's name until torch 2.14, and since.
_BUFFERS_AT_EACH_STEP = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


def _no_heartbeat() -> None:
    """A run of one process has no watchdog."""


@dataclass(frozen=True, kw_only=True)
class DistContext:
    """The rank and device of this process, and collective operations over all processes of the run."""

    rank: int
    """Number of this process, from 0."""
    local_rank: int
    """Number of this process on its machine, from 0."""
    world_size: int
    """Number of processes."""
    num_sharing_cores: int
    """Processes on this machine that share the cores of this one, itself included."""
    device: torch.device
    """Where this process computes."""
    mode: str = "inline"
    """How the processes were started: inline, elastic or adopted; for run.json."""
    control: torch.distributed.ProcessGroup | None = None
    """A gloo group for small messages between the CPUs, besides the one for gradients; None with one process."""
    heartbeat: Callable[[], None] = _no_heartbeat
    """Called at each step; the watchdog takes a long time without a call for a stall."""

    @property
    def is_main(self) -> bool:
        """Whether this process owns the run folder."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over all processes, in place; every process must call it."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)
        return values

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """The values of all processes, concatenated by rank; every process must call it.

        They are sent as JSON: with several processes, tuples come back as lists.
        """
        if self.world_size == 1:
            return list(values)
        own = _as_bytes(list(values))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        torch.distributed.all_gather(lengths, torch.tensor([len(own)]), group=self.control)
        longest = max(int(length) for length in lengths)
        contents = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(own)] = own
        torch.distributed.all_gather(contents, padded, group=self.control)
        pairs = zip(contents, lengths, strict=True)
        return [value for content, length in pairs for value in _from_bytes(content[: int(length)])]

    def total(self, number: int) -> int:
        """The sum of a number over all processes, by the CPUs; every process must call it."""
        return self.begin_total(number)()

    def begin_total(self, number: int) -> Callable[[], int]:
        """Start a :meth:`total` asynchronously; the function that is returned waits for it and returns the sum."""
        if self.world_size == 1:
            return lambda: number
        whole = torch.tensor(number)
        exchange = torch.distributed.all_reduce(whole, group=self.control, async_op=True)

        def wait() -> int:
            exchange.wait()
            return int(whole)

        return wait

    def broadcast_object(self, value: Any) -> Any:  # noqa: ANN401 - plain values
        """The main process's value, sent as JSON; every process must call it."""
        if self.world_size == 1:
            return value
        content = _as_bytes(value) if self.is_main else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(content)])
        torch.distributed.broadcast(length, src=0, group=self.control)
        if not self.is_main:
            content = torch.empty(int(length), dtype=torch.uint8)
        torch.distributed.broadcast(content, src=0, group=self.control)
        return _from_bytes(content)

    def broadcast_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite tensors on the CPU with those of the main process; every process must call it."""
        if self.world_size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0, group=self.control)

    def smallest(self, value: int | None) -> int | None:
        """The minimum over all processes that have a number; None where none has one. Every process must call it."""
        if self.world_size == 1:
            return value
        least = torch.tensor(_INT64_MAX if value is None else value)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=self.control)
        return None if least.item() == _INT64_MAX else int(least)

    def broadcast_buffers(self, module: nn.Module) -> None:
        """Overwrite the buffers, such as the statistics of BatchNorm, with those of the main process.

        The statistics differ, as each process has seen other images; all must evaluate what the main process saves.
        """
        if self.world_size == 1:
            return
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)

    def replicate(self, model: nn.Module, *, is_graph_static: bool) -> nn.Module:
        """Wrap a model in DistributedDataParallel; the model itself with one process.

        Only parameters that require gradients now are reduced: call it again when that changes.

        Args:
            model: on the device; its weights become those of the main process.
            is_graph_static: every step computes the same operations, and each step exchanges gradients.
        """
        if self.world_size == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            static_graph=is_graph_static,
            # Each process keeps its own statistics until `broadcast_buffers`; sending them at each step gains nothing.
            **cast(dict[str, Any], {_BUFFERS_AT_EACH_STEP: False}),
        )


def _as_bytes(value: Any) -> torch.Tensor:  # noqa: ANN401 - plain values
    """JSON, where PyTorch's own functions for objects pickle: a peer must not be able to run code in this process."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(content: torch.Tensor) -> Any:  # noqa: ANN401 - plain values
    return json.loads(content.numpy().tobytes())


class Vote:
    """An asynchronous all-reduce (maximum) at each step, whose result is read one step later, without a wait."""

    def __init__(self, dist: DistContext) -> None:
        self._dist = dist
        self._buffer = torch.zeros((), dtype=torch.int64)
        self._pending: torch.distributed.Work | None = None

    def cast(self, number: int) -> int:
        """The maximum over all processes at the previous call, 0 at the first; with one process: `number`.

        Every process must call it, equally often; all get the same result.
        """
        if self._dist.world_size == 1:
            return number
        answer = 0
        if self._pending is not None:
            self._pending.wait()
            answer = int(self._buffer)
        self._buffer.fill_(number)
        largest = torch.distributed.ReduceOp.MAX
        self._pending = torch.distributed.all_reduce(self._buffer, largest, group=self._dist.control, async_op=True)
        return answer


def single_process(device: torch.device) -> DistContext:
    """The context of a run of one process."""
    return DistContext(rank=0, local_rank=0, world_size=1, num_sharing_cores=1, device=device)
