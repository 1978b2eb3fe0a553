from __future__ import annotations

import pytest
import torch

import runner
from runner.base.errors import DeviceError, PreflightError
from runner.launch import plan as mode
from runner.launch.preflight import preflight
from tests.conftest import TINY

SYNC = ("dist.sync_batchnorm=true", "dist.procs_per_node=2")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_statistics_over_all_processes_need_cuda(tiny, no_gpu, device):
    with pytest.raises(DeviceError, match=r"dist\.sync_batchnorm = true: .*CUDA only.*would train on cpu; set"):
        preflight(runner.load_config(tiny(*SYNC, f"trainer.device={device}")))


def test_they_are_refused_together_with_whatever_else_is_wrong(tiny, no_gpu):
    others = ("trainer.device=auto", "trainer.precision=fp16", "model.weights=/nowhere.safetensors")
    with pytest.raises(PreflightError) as caught:
        preflight(runner.load_config(tiny(*SYNC, *others)))
    mistakes = str(caught.value)
    assert mistakes.startswith("3 mistakes")
    for what in ("dist.sync_batchnorm = true", "trainer.precision = fp16", "/nowhere.safetensors"):
        assert what in mistakes


def test_one_process_has_them_by_itself_and_a_submitted_run_is_judged_on_its_nodes(tiny, no_gpu, monkeypatch):
    assert preflight(runner.load_config(tiny(SYNC[0]))).plan.mode == "inline"
    monkeypatch.setattr(mode, "_check_can_submit", lambda: None)
    assert preflight(runner.load_config(tiny(*SYNC, "dist=slurm"))).plan.mode == "submitted"


def test_validate_says_so_before_a_process_or_a_folder_is_made(run_cli, tmp_path):
    done = run_cli("validate", *TINY, *SYNC)
    assert done.returncode == 2
    assert done.stderr.startswith("runner: DeviceError: dist.sync_batchnorm = true")
    assert list(tmp_path.iterdir()) == []
