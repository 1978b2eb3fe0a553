"""Checks of devices, number formats and versions, with torch."""

from __future__ import annotations

import shutil
import subprocess

import torch

from runner.base.errors import RunnerError
from runner.config.schema.trainer import TrainerConfig
from runner.dist.device import choose_device, choose_precision, count_cuda_devices, describe_device
from runner.run import installed
from runner.tools.doctor.findings import Finding, gigabytes

_SECONDS_FOR_THE_DRIVER = 10
_AMPERE = 8
_VOLTA = 7


def check_devices(config: TrainerConfig, num_processes: int) -> tuple[Finding, torch.device | None]:
    """Check which devices there are, and which one the first process takes."""
    gpus = [torch.cuda.get_device_properties(number) for number in range(count_cuda_devices())]
    found = [f"cuda:{number} {gpu.name} ({gigabytes(gpu.total_memory)})" for number, gpu in enumerate(gpus)]
    found += ["mps"] if torch.backends.mps.is_available() else []
    found.append(describe_device(torch.device("cpu")))
    values: dict[str, object] = {"available": found, "num_gpus": len(gpus)}
    try:
        device = choose_device(config)
    except RunnerError as error:
        return Finding(topic="device", found=str(error), error=error, values=values), None
    advice = []
    if device.type == "cpu" and len(found) > 1:
        advice.append(f"{found[0]} is not used: trainer.device=auto")
    if device.type == "cuda" and len(gpus) > num_processes:
        advice.append(f"{num_processes} of {len(gpus)} GPUs are used: dist.procs_per_node=auto takes all")
    text = f"{describe_device(device)}; there is {', '.join(found)}"
    return Finding(topic="device", found=text, advice=tuple(advice), values={**values, "chosen": str(device)}), device


def check_precision(config: TrainerConfig, device: torch.device) -> Finding:
    """Check which number formats the device multiplies natively, and which one is chosen."""
    support = _supported_precisions(device)
    words = ", ".join(f"{name} {how}" for name, how in support.items())
    try:
        chosen = choose_precision(config, device)
    except RunnerError as error:
        return Finding(topic="precision", found=str(error), error=error, values={"support": support})
    advice = []
    if support[chosen.name] == "emulated":
        advice.append(f"{chosen.name} is emulated on this device, which is slower than fp32: trainer.precision=auto")
    if chosen.name == "fp32" and support["bf16"] == "native":
        advice.append("this device is several times faster in bf16: trainer.precision=auto")
    return Finding(
        topic="precision",
        found=f"{chosen.name} ({chosen.reason}); {words}",
        values={"chosen": chosen.name, "support": support},
        advice=tuple(advice),
    )


def _supported_precisions(device: torch.device) -> dict[str, str]:
    """By number format: native, emulated or not trained in."""
    match device.type:
        case "cuda":
            major = torch.cuda.get_device_capability(device)[0]
            bf16 = "native" if major >= _AMPERE else "emulated"
            return {"fp32": "native", "bf16": bf16, "fp16": "native" if major >= _VOLTA else "emulated"}
        case "cpu":
            has_bf16 = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
            return {"fp32": "native", "bf16": "native" if has_bf16 else "emulated", "fp16": "not trained in"}
        case _:
            return {"fp32": "native", "bf16": "emulated", "fp16": "not trained in"}


def check_versions() -> Finding:
    """The versions that speed and results depend on."""
    versions = installed.versions() | {"torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        versions["driver"] = _driver_version()
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding(topic="versions", found=text, values=versions)


def _driver_version() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_FOR_THE_DRIVER)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(iter(done.stdout.split()), "unknown")
