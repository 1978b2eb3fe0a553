from types import SimpleNamespace

import pytest
import torch
import yaml

from runner.base.errors import DeviceError
from runner.config import CONF_DIR
from runner.config.schema.trainer import TrainerConfig
from runner.dist import device
from runner.dist.device import (
    Precision,
    agreed_precision,
    choose_device,
    choose_memory_format,
    choose_num_threads,
    choose_precision,
    count_cuda_devices,
    fair_number_of_threads,
    seed_generators,
    set_determinism,
)

CPU = torch.device("cpu")


def config(**changes):
    values = yaml.safe_load((CONF_DIR / "trainer" / "default.yaml").read_text())
    return TrainerConfig(**{**values, **changes})


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"trainer\.device = cuda.*there is cpu"):
        choose_device(config(device="cuda"))


def test_auto_prefers_cuda_and_gives_each_process_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(config(), local_rank=3) == torch.device("cuda", 3)
    assert choose_device(config(device="cpu")) == CPU


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"AMX": True, "AVX-512 bf16": True}, ("bf16", "AMX")),
        ({"AMX": False, "AVX-512 bf16": False}, ("fp32", "no bf16")),
    ],
)
def test_a_cpu_trains_in_bf16_where_it_is_fast(monkeypatch, features, expected):
    monkeypatch.setattr(device, "bf16_features_of_the_cpu", lambda: features)
    precision = choose_precision(config(), CPU)
    assert precision.name == expected[0]
    assert expected[1] in precision.reason


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 0), "fp16")])
def test_a_gpu_trains_in_what_its_generation_is_fast_at(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose_precision(config(), torch.device("cuda", 0)).name == expected


def test_fp16_on_a_cpu_is_refused():
    with pytest.raises(DeviceError, match="cpu does not compute in fp16"):
        choose_precision(config(precision="fp16"), CPU)


def test_a_configured_precision_is_used():
    precision = choose_precision(config(precision="fp32"), CPU)
    assert (precision.name, precision.dtype) == ("fp32", torch.float32)
    with precision.autocast("cpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_small_images_in_fp32_on_a_cpu_stay_contiguous():
    fp32, bf16 = (choose_precision(config(precision=name), CPU) for name in ("fp32", "bf16"))
    assert choose_memory_format(CPU, fp32, 32) == torch.contiguous_format
    assert choose_memory_format(CPU, fp32, 224) == torch.channels_last
    assert choose_memory_format(CPU, bf16, 32) == torch.channels_last
    assert choose_memory_format(torch.device("cuda"), fp32, 32) == torch.channels_last


@pytest.mark.parametrize(
    ("cores", "of_torch", "sharing", "threads"),
    [(8, 8, 2, 4), (16, 8, 2, 4), (4, 8, 2, 2), (4, 4, 8, 1), (4, 8, 1, 8)],
)
def test_processes_share_the_cores(monkeypatch, cores, of_torch, sharing, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)
    assert choose_num_threads(sharing) == threads


def test_the_number_of_threads_that_the_user_sets_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert choose_num_threads(2) == 3


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {}, 1),
        ({"deterministic": True}, {}, 2),
        ({}, {"OMP_NUM_THREADS": "2"}, 2),
        ({"device": "cuda"}, {}, 2),
    ],
)
def test_threads_are_no_more_than_the_fair_share(monkeypatch, caplog, settings, environment, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device, "fair_share_of_cores", lambda cores: cores // 2)
    monkeypatch.setattr(device, "choose_device", lambda trainer: torch.device(trainer.device.replace("auto", "cpu")))
    monkeypatch.setattr(device, "cpu_count", lambda: 2)
    monkeypatch.setattr(device.LOGGER, "propagate", True)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with caplog.at_level("INFO", logger=device.LOGGER.name), fair_number_of_threads(config(**settings)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert ("1 of 2, as other" in caplog.text) == (expected == 1)


def test_seeding_gives_the_random_numbers_of_torch_manual_seed():
    torch.manual_seed(2**63 + 7)
    wanted = torch.rand(3)
    seed_generators(CPU, 2**63 + 7)
    assert torch.equal(torch.rand(3), wanted)


def test_gpus_that_only_the_driver_sees_do_not_count(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert count_cuda_devices() == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    assert count_cuda_devices() == 1


def test_deterministic_numbers_are_not_rounded_to_tf32(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        set_determinism(deterministic=True)
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    finally:
        set_determinism(deterministic=False)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)


@pytest.mark.parametrize(
    ("formats", "agreed"),
    [
        (["bf16", "bf16"], "bf16"),
        (["fp16", "bf16"], "fp16"),
        (["bf16", "fp32"], "fp32"),
        (["bf16", "fp16", "fp32"], "fp32"),
    ],
)
def test_all_processes_compute_in_the_format_in_which_none_is_slow(monkeypatch, formats, agreed):
    dist = SimpleNamespace(device=CPU, gather=lambda own: formats)
    for own in formats:
        chosen = Precision(name=own, reason="its own")
        monkeypatch.setattr(device, "choose_precision", lambda config, device, chosen=chosen: chosen)
        precision = agreed_precision(config(), dist)
        assert precision.name == agreed
        assert (precision is chosen) == (len(set(formats)) == 1)
