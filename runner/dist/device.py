"""Chooses the device and the number format, and says why; brings tensors and seeds there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from joblib import cpu_count  # type: ignore[import-untyped]
from torch import Tensor

from runner.base.errors import DeviceError

if TYPE_CHECKING:
    from runner.config.schema.dist import DistConfig
    from runner.dist.collectives import DistContext

_AMPERE = 8  # the first CUDA compute capability with fast bf16


class Wanted(Protocol):
    """The keys of whoever computes: a training, or a call of `predict`."""

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
        """The dtype of the forward pass."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.name]

    def autocast(self, device_type: str) -> torch.autocast:
        """One code path for all formats: autocast that does nothing in fp32."""
        return torch.autocast(device_type, dtype=self.dtype, enabled=self.name != "fp32")


def moved(tensor: Tensor, device: torch.device, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    """A tensor on a device. On a CUDA device the host does not wait for the copy, if it comes from page-locked memory.

    Elsewhere it waits: of an MPS device, torch would read the tensor's memory after its owner has freed it.
    """
    return tensor.to(device, non_blocking=device.type == "cuda", memory_format=memory_format)


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed torch's global generators of the CPU and of this device; `seed` has at most 64 bits."""
    # Not torch.manual_seed: for each kind of device that is absent it writes down where it was called, in 0.14 ms.
    torch.default_generator.manual_seed(seed)
    match device.type:
        case "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        case "mps":
            torch.mps.manual_seed(seed)


def count_gpus() -> int:
    """GPUs that CUDA can use.

    torch.cuda.device_count() counts what the driver's management library sees: GPUs too for which the driver is too old
    or which are broken, and all cards where MIG lets a process use a part of one.
    """
    return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0


def choose_device(config: Wanted, local_rank: int = 0, *, key: str = "trainer.device") -> torch.device:
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


def check_sync_batchnorm(config: DistConfig, device: torch.device, world_size: int) -> None:
    """Refuse statistics over all processes where PyTorch can't compute them; one process has them by itself.

    Raises:
        DeviceError: of several processes this one does not train on CUDA.
    """
    if config.sync_batchnorm and world_size > 1 and device.type != "cuda":
        raise DeviceError(
            f"dist.sync_batchnorm = true: PyTorch has it for CUDA only, and these {world_size} processes would train "
            f"on {device.type}; set dist.sync_batchnorm=false"
        )


def choose_precision(config: Wanted, device: torch.device, *, key: str = "trainer.precision") -> Precision:
    """The number format for a device; `auto` takes bf16 where the hardware multiplies it fast; `key` is for messages.

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


def agreed_precision(config: Wanted, dist: DistContext) -> Precision:
    """The number format of all processes, which must call it: `auto` takes the one in which none of them is slow.

    Results would depend on who has which image else; and gradients of fp16, which are scaled, go with no others.

    Raises:
        DeviceError: fp16 on a device that can't train in it.
    """
    own = choose_precision(config, dist.device)
    names = set(dist.gather([own.name]))
    if len(names) == 1:
        return own
    name = next(name for name in ("fp32", "fp16") if name in names)
    return Precision(name=name, reason=f"others would take {' or '.join(sorted(names - {name}))}, but not all can")


def choose_memory_format(device: torch.device, precision: Precision, image_size: int) -> torch.memory_format:
    """The faster layout of images and convolution weights.

    channels_last, but for small images in fp32 on a CPU: ResNet-18 at 32 px ran 2.7 times as fast without it
    (560 against 206 images/s on 2 cores), at 64 px 1.1 times; at 224 px channels_last is ahead by 1.2 times.
    """
    is_small_fp32_on_cpu = device.type == "cpu" and precision.name == "fp32" and image_size <= 64
    return torch.contiguous_format if is_small_fp32_on_cpu else torch.channels_last


def bf16_features_of_the_cpu() -> dict[str, bool]:
    """What the CPU multiplies bf16 with, the fastest first, and whether it is there."""
    # torch has no public question for this; these two have stood since torch 2.4.
    return {
        "AMX": bool(torch.cpu._is_amx_tile_supported()),
        "AVX-512 bf16": bool(torch.cpu._is_avx512_bf16_supported()),
    }


def choose_num_threads(num_sharing_cores: int) -> int:
    """Threads with which a process computes on the CPU: its share of the cores, at least 1.

    A process that has its cores to itself keeps torch's own choice, and so does one whose user has set OMP_NUM_THREADS.

    Args:
        num_sharing_cores: training processes that share the cores of this one, itself included.
    """
    own_choice = torch.get_num_threads()
    if num_sharing_cores == 1 or "OMP_NUM_THREADS" in os.environ:
        return own_choice
    # Hyperthreads compute no faster together: torch counts cores. It overlooks the limits of a container.
    return max(1, min(int(cpu_count()), own_choice) // num_sharing_cores)


def set_determinism(*, deterministic: bool) -> None:
    """Choose between the fastest GPU algorithms and those that give the same bits each time.

    On a CPU our operations give the same bits anyway, for the same number of threads.
    """
    if deterministic:
        # Without it cuBLAS refuses to be deterministic; it is read when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    # Matrix products and convolutions in fp32 are rounded to TF32 where that is fast.
    torch.set_float32_matmul_precision("highest" if deterministic else "high")
    torch.backends.cudnn.allow_tf32 = not deterministic


def describe_device(device: torch.device) -> str:
    """The device in words, for the log and for run.json."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        name = str(torch.cpu.get_capabilities().get("cpu_name", "")) if hasattr(torch.cpu, "get_capabilities") else ""
        threads = f"{torch.get_num_threads()} threads"
        return f"cpu: {name}, {threads}" if name else f"cpu: {threads}"
    return device.type
