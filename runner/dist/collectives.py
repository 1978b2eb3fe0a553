"""What a process knows of the group it belongs to, and the exchanges that training needs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_INT64_MAX = torch.iinfo(torch.int64).max
# Its name until torch 2.14, and since.
_BUFFERS_AT_EACH_STEP = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


def _no_one_watches() -> None:
    """A run of one process may take as long as it likes."""


@dataclass(frozen=True, kw_only=True)
class DistContext:
    """Place of this process among all processes of a run."""

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
    """How the processes were started, for the record."""
    control: torch.distributed.ProcessGroup | None = None
    """For small messages between the CPUs (gloo), beside the exchange of gradients; None where there is one process."""
    heartbeat: Callable[[], None] = _no_one_watches
    """Called whenever this process gets on; whoever watches it takes a long silence for a stall."""

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
        """The plain values of all processes, one after another by rank; every process must call it.

        Plain is what JSON knows, and what is read is JSON; of many processes, tuples come back as lists.
        """
        if self.world_size == 1:
            return list(values)
        own = _as_bytes(list(values))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        torch.distributed.all_gather(lengths, torch.tensor([len(own)]), group=self.control)
        longest = max(int(length) for length in lengths)
        everyone = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(own)] = own
        torch.distributed.all_gather(everyone, padded, group=self.control)
        return [
            value for told, length in zip(everyone, lengths, strict=True) for value in _from_bytes(told[: int(length)])
        ]

    def total(self, number: int) -> int:
        """The sum of a number over all processes, between their CPUs; every process must call it."""
        return self.begin_total(number)()

    def begin_total(self, number: int) -> Callable[[], int]:
        """Begin a :meth:`total`, which goes on beside what follows; what is returned waits for it and gives the sum."""
        if self.world_size == 1:
            return lambda: number
        whole = torch.tensor(number)
        exchange = torch.distributed.all_reduce(whole, group=self.control, async_op=True)

        def wait() -> int:
            exchange.wait()
            return int(whole)

        return wait

    def share_object(self, value: Any) -> Any:  # noqa: ANN401 - plain values
        """The main process's plain values, as :meth:`gather` has them; every process must call it."""
        if self.world_size == 1:
            return value
        content = _as_bytes(value) if self.is_main else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(content)])
        torch.distributed.broadcast(length, src=0, group=self.control)
        if not self.is_main:
            content = torch.empty(int(length), dtype=torch.uint8)
        torch.distributed.broadcast(content, src=0, group=self.control)
        return _from_bytes(content)

    def share_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Fill tensors on the CPU with those of the main process, in place; every process must call it."""
        if self.world_size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0, group=self.control)

    def smallest(self, value: int | None) -> int | None:
        """The smallest number that any process has; None where none has any. Every process must call it."""
        if self.world_size == 1:
            return value
        least = torch.tensor(_INT64_MAX if value is None else value)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=self.control)
        return None if least.item() == _INT64_MAX else int(least)

    def share_buffers(self, module: nn.Module) -> None:
        """Give every process the buffers of the main one, such as the statistics of BatchNorm, in place.

        Each process has seen other images. What is evaluated, by all, must be what the main process saves.
        """
        if self.world_size == 1:
            return
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)

    def replicate(self, model: nn.Module, *, is_graph_static: bool) -> nn.Module:
        """What computes a model's gradients, averaged over all processes: the model itself where there is one process.

        Only parameters that learn at this moment are exchanged: call it again when others begin to.

        Args:
            model: on the device; becomes that of the main process.
            is_graph_static: every step computes the same operations, and each step exchanges gradients.
        """
        if self.world_size == 1:
            return model
        own_buffers: dict[str, Any] = {_BUFFERS_AT_EACH_STEP: False}
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if on_gpu else None,
            gradient_as_bucket_view=True,
            static_graph=is_graph_static,
            # Each process keeps statistics of its own until `share_buffers`; sending them at each step gains nothing.
            **own_buffers,
        )


def _as_bytes(value: Any) -> torch.Tensor:  # noqa: ANN401 - plain values
    """Not a pickle, as of PyTorch's own exchange of objects: who joins the group must not run code in the others."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(content: torch.Tensor) -> Any:  # noqa: ANN401 - plain values
    return json.loads(content.numpy().tobytes())


class Vote:
    """Asks all processes for a number at each step, without a wait: the answer comes with the next call.

    By then the exchange has long been carried out, beside the step's work.
    """

    def __init__(self, dist: DistContext) -> None:
        self._dist = dist
        self._ballot = torch.zeros((), dtype=torch.int64)
        self._pending: torch.distributed.Work | None = None

    def cast(self, number: int) -> int:
        """The largest number that any process gave at the call before this one; of one process, at this one.

        Every process must call it, equally often; all get the same answer.
        """
        if self._dist.world_size == 1:
            return number
        answer = 0
        if self._pending is not None:
            self._pending.wait()
            answer = int(self._ballot)
        self._ballot.fill_(number)
        largest = torch.distributed.ReduceOp.MAX
        self._pending = torch.distributed.all_reduce(self._ballot, largest, group=self._dist.control, async_op=True)
        return answer


def single_process(device: torch.device) -> DistContext:
    """The context of a run of one process."""
    return DistContext(rank=0, local_rank=0, world_size=1, num_sharing_cores=1, device=device)
