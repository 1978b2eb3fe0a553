"""What a process tells of its device before it meets the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import runner
from runner.launch.ranks import rank
from runner.launch.ranks.rendezvous import RankFacts

FACTS = RankFacts(host="a", cores=[0], config={}, data="")


def told(*overrides: str, local_rank: int | None = 0) -> RankFacts:
    return rank._with_device(FACTS, runner.load_config(overrides), local_rank, world_size=2)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, as far as anybody asks."""
    monkeypatch.setattr(rank, "count_cuda_devices", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{device.index}"))


def test_a_cpu():
    facts = told("trainer.device=cpu")
    assert (facts.device, facts.gpu, facts.refusal) == ("cpu", "", None)


def test_a_machine_without_its_gpu_where_nccl_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = told("dist.backend=nccl")
    assert facts.refusal is not None, "rank 0 tells it all processes"
    name, message = facts.refusal
    assert name == "DeviceError"
    assert "dist.backend = nccl" in message


@pytest.mark.parametrize(("local_rank", "gpu"), [(0, "GPU-0"), (1, "GPU-1"), (2, "GPU-0"), (None, "")])
def test_a_gpu(gpus, local_rank, gpu):
    facts = told(local_rank=local_rank)
    assert (facts.device, facts.gpu) == ("cuda", gpu)


def test_with_gloo_or_leave_processes_may_share_a_gpu(gpus, monkeypatch):
    assert told("dist.backend=gloo").gpu == ""
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert told("dist.backend=nccl").gpu == ""


def test_a_gpu_that_does_not_answer_is_a_refusal_for_all(gpus, monkeypatch):
    def busy(device: torch.device) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    assert told().refusal == (
        "DeviceError",
        "cuda:0 can't be used: CUDA error: all CUDA-capable devices are busy or unavailable",
    )


def test_statistics_over_all_processes_are_a_refusal_for_all_where_one_has_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = told("dist.sync_batchnorm=true")
    assert facts.refusal is not None
    assert "dist.sync_batchnorm = true: PyTorch has it for CUDA only" in facts.refusal[1]


def test_a_device_that_is_missing_is_a_refusal_for_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = told("trainer.device=cuda")
    assert facts.refusal is not None
    name, message = facts.refusal
    assert name == "DeviceError"
    assert "trainer.device = cuda: this machine has no such device" in message
