"""Choice of device, precision, memory format and threads; moving tensors, seeding, determinism."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
import torch.distributed
from joblib import cpu_count  # type: ignore[import-untyped]
from torch import Tensor

from runner.base.console import LOGGER
from runner.base.errors import DeviceError
from runner.base.wait_policy import fair_share_of_cores
from runner.config.schema.transforms import height_and_width

if TYPE_CHECKING:
    from runner.config.schema import Config
    from runner.config.schema.trainer import TrainerConfig
    from runner.dist.collectives import DistContext

_AMPERE = 8  # the first CUDA compute capability with fast bf16


class ComputeConfig(Protocol):
    """The keys of `trainer` and `predict` that choose device and precision."""

    @property
    def device(self) -> str:
        """auto, cpu, cuda or mps."""

    @property
    def precision(self) -> str:
        """auto, fp32, bf16 or fp16."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number format of the forward pass; weights and optimizer state stay in fp32."""

    name: str
    """fp32, bf16 or fp16."""
    reason: str
    """Why it was chosen, for the log."""

    @property
    def dtype(self) -> torch.dtype:
        """As a torch dtype."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.name]

    def autocast(self, device_type: str) -> torch.autocast:
        """An autocast context, which is disabled in fp32."""
        return torch.autocast(device_type, dtype=self.dtype, enabled=self.name != "fp32")


def to_device(
    tensor: Tensor, device: torch.device, memory_format: torch.memory_format = torch.preserve_format
) -> Tensor:
    """`tensor.to(device)`; to CUDA, from page-locked memory, the host does not wait for the copy.

    To MPS it waits: torch would read the tensor's memory after it has been freed.
    """
    return tensor.to(device, non_blocking=device.type == "cuda", memory_format=memory_format)


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed torch's global generators of the CPU and of this device; `seed` has at most 64 bits."""
    # torch.manual_seed formats a stack trace for each kind of device that is absent, which takes 0.14 ms.
    torch.default_generator.manual_seed(seed)
    match device.type:
        case "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        case "mps":
            torch.mps.manual_seed(seed)


def count_cuda_devices() -> int:
    """The number of GPUs that CUDA can use.

    torch.cuda.device_count() asks NVML, which also counts broken GPUs and those for which the driver is too old, and
    all cards where MIG gives a process a part of one.
    """
    return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0


def choose_device(config: ComputeConfig, local_rank: int = 0, *, key: str = "trainer.device") -> torch.device:
    """The device of a process; `key` names it in messages.

    Raises:
        DeviceError: when the config names a device that this machine lacks.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    wanted = config.device
    if wanted == "auto":
        wanted = "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if not available[wanted]:
        present = ", ".join(name for name, is_there in available.items() if is_there)
        raise DeviceError(f"{key} = {wanted}: this machine has no such device; there is {present}")
    return torch.device("cuda", local_rank) if wanted == "cuda" else torch.device(wanted)


def check_device(config: Config, device: torch.device, world_size: int) -> list[DeviceError]:
    """Find what a config asks for that this device, or the PyTorch installed here, can't do.

    As `trainer.device=auto` may be another device on each machine, each machine checks its own.

    Args:
        config: complete and checked.
        device: from :func:`choose_device`.
        world_size: number of processes.
    """
    mistakes: list[str] = []
    kind, backend = device.type, choose_backend(config, device)
    available = [name for name in ("nccl", "gloo") if torch.distributed.is_backend_available(name)]
    if world_size > 1 and kind == "mps":
        mistakes.append(
            f"trainer.device = {config.trainer.device}: {world_size} processes can't train on MPS, for which PyTorch "
            "has no process group; set dist.procs_per_node=1, or trainer.device=cpu"
        )
    elif world_size > 1 and backend == "nccl" and kind != "cuda":
        mistakes.append(
            f"dist.backend = nccl: NCCL exchanges gradients between GPUs, and these {world_size} processes would train "
            f"on {kind}; set dist.backend=auto, or gloo"
        )
    elif world_size > 1 and backend not in available:
        mistakes.append(
            f"dist.backend = {config.dist.backend}: the PyTorch that is installed here was built without {backend}; "
            f"there is {', '.join(available) or 'none'}"
        )
    if config.dist.sync_batchnorm and world_size > 1 and kind != "cuda":
        mistakes.append(
            f"dist.sync_batchnorm = true: PyTorch has it for CUDA only, and these {world_size} processes would train "
            f"on {kind}; set dist.sync_batchnorm=false"
        )
    missing = _missing_for_compiling(device) if config.trainer.compile else None
    if missing is not None:
        mistakes.append(f"trainer.compile = true: {missing}; install it, or set trainer.compile=false")
    return [DeviceError(mistake) for mistake in mistakes]


def _missing_for_compiling(device: torch.device) -> str | None:
    """What torch.compile needs for a device, besides PyTorch, and is not installed; None where nothing is missing."""
    if device.type == "cuda":
        is_there = importlib.util.find_spec("triton") is not None
        return None if is_there else "for GPUs torch.compile needs triton, which is not installed here"
    from torch._inductor import config as inductor_config  # noqa: PLC0415 - takes a second

    compilers = [name for name in inductor_config.cpp.cxx if name is not None]
    if device.type == "cpu" and not any(shutil.which(name) for name in compilers):
        return f"for the CPU torch.compile needs a C++ compiler, and there is no {' and no '.join(compilers)} on PATH"
    return None


def choose_backend(config: Config, device: torch.device) -> Literal["nccl", "gloo"]:
    """The library that exchanges gradients: as configured, else nccl for CUDA and gloo for other devices."""
    if config.dist.backend != "auto":
        return config.dist.backend
    return "nccl" if device.type == "cuda" else "gloo"


def choose_precision(config: ComputeConfig, device: torch.device, *, key: str = "trainer.precision") -> Precision:
    """The precision on a device; `auto` takes bf16 where the hardware is fast at it; `key` names it in messages.

    Raises:
        DeviceError: fp16 on a device that can't train in it.
    """
    if config.precision != "auto":
        if config.precision == "fp16" and device.type != "cuda":
            raise DeviceError(f"{key} = fp16: {device.type} does not compute in fp16; use auto, bf16 or fp32")
        return Precision(name=config.precision, reason="as configured")
    match device.type:
        case "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability[0] >= _AMPERE:
                return Precision(name="bf16", reason=f"CUDA compute capability {capability[0]}.{capability[1]}")
            return Precision(name="fp16", reason="this GPU is older than bf16")
        case "cpu":
            for feature, is_there in bf16_features_of_the_cpu().items():
                if is_there:
                    return Precision(name="bf16", reason=f"the CPU has {feature}")
            return Precision(name="fp32", reason="the CPU has no bf16 arithmetic")
        case _:
            return Precision(name="fp32", reason=f"the safe choice on {device.type}")


def agreed_precision(config: ComputeConfig, dist: DistContext) -> Precision:
    """One precision for all processes, each of which must call it; `auto` takes one in which none of them is slow.

    Otherwise results would depend on which process has which image, and scaled fp16 gradients would be averaged with
    unscaled ones.

    Raises:
        DeviceError: fp16 on a device that can't train in it.
    """
    own = choose_precision(config, dist.device)
    names = set(dist.gather([own.name]))
    if len(names) == 1:
        return own
    name = next(name for name in ("fp32", "fp16") if name in names)
    return Precision(name=name, reason=f"others would take {' or '.join(sorted(names - {name}))}, but not all can")


def choose_memory_format(
    device: torch.device, precision: Precision, image_size: int | tuple[int, int]
) -> torch.memory_format:
    """The faster layout of images and convolution weights.

    channels_last, but for small images in fp32 on a CPU: ResNet-18 at 32 px ran 2.7 times as fast without it
    (560 against 206 images/s on 2 cores), at 64 px 1.1 times; at 224 px channels_last is ahead by 1.2 times.
    """
    longer_side = max(height_and_width(image_size))
    is_small_fp32_on_cpu = device.type == "cpu" and precision.name == "fp32" and longer_side <= 64
    return torch.contiguous_format if is_small_fp32_on_cpu else torch.channels_last


def bf16_features_of_the_cpu() -> dict[str, bool]:
    """The CPU features for bf16 products, the fastest first, and whether this CPU has them."""
    # There is no public function for this; these two have existed since torch 2.4.
    return {
        "AMX": bool(torch.cpu._is_amx_tile_supported()),
        "AVX-512 bf16": bool(torch.cpu._is_avx512_bf16_supported()),
    }


def choose_num_threads(num_sharing_cores: int) -> int:
    """CPU threads of a training process: its share of the cores, at least 1.

    torch's own choice, where the process does not share its cores or the user has set OMP_NUM_THREADS.

    Args:
        num_sharing_cores: training processes that share the cores of this one, itself included.
    """
    own_choice = torch.get_num_threads()
    if num_sharing_cores == 1 or "OMP_NUM_THREADS" in os.environ:
        return own_choice
    # torch counts cores, as hyperthreads don't compute faster together, but overlooks the limits of a container.
    return max(1, min(int(cpu_count()), own_choice) // num_sharing_cores)


@contextmanager
def fair_number_of_threads(trainer: TrainerConfig) -> Iterator[None]:
    """Within the block, let a process that trains alone compute with no more threads than its fair share of the cores.

    As many threads as cores wait for each other beside other processes: on 2 cores, beside one busy loop, a small net
    ran at 56 images/s with 2 threads and at 270 with 1. The choice is made once, at the start, as the bits of a result
    depend on it; a resumed run keeps that of the run. There is none with trainer.deterministic, with OMP_NUM_THREADS,
    or on a GPU.
    """
    before = torch.get_num_threads()
    is_free = choose_device(trainer).type == "cpu" and not trainer.deterministic and "OMP_NUM_THREADS" not in os.environ
    chosen = fair_share_of_cores(choose_num_threads(1)) if is_free else before
    if chosen < before:
        LOGGER.info(
            "threads     %d of %d, as other processes compute here; OMP_NUM_THREADS says otherwise", chosen, before
        )
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_determinism(*, deterministic: bool) -> None:
    """Choose between the fastest GPU algorithms and those that give the same bits each time.

    On a CPU our operations give the same bits anyway, for the same number of threads.
    """
    if deterministic:
        # cuBLAS is deterministic only with this variable, which it reads when CUDA is initialised.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    # Matrix products and convolutions in fp32 are rounded to TF32 where that is fast.
    torch.set_float32_matmul_precision("highest" if deterministic else "high")
    torch.backends.cudnn.allow_tf32 = not deterministic


def describe_device(device: torch.device) -> str:
    """A description for the log and for run.json."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        name = str(torch.cpu.get_capabilities().get("cpu_name", "")) if hasattr(torch.cpu, "get_capabilities") else ""
        threads = f"{torch.get_num_threads()} threads"
        return f"cpu: {name}, {threads}" if name else f"cpu: {threads}"
    return device.type
