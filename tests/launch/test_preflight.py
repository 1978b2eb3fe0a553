from __future__ import annotations

import re

import pytest
import torch

import runner
import runner.model  # and torchvision, which looks at functions that are replaced below
from runner.base.errors import ConfigError, DeviceError, PreflightError
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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ("dist.backend=nccl", "dist.procs_per_node=2"),
            r"dist\.backend = nccl: .* would train on cpu; set dist\.backend=",
        ),
        (
            ("trainer.compile=true",),
            r"trainer\.compile = true: .* C\+\+ compiler, and there is no no-such-compiler on PATH",
        ),
    ],
)
def test_a_key_is_judged_by_what_it_comes_to_on_this_machine(run_cli, tmp_path, typed, said):
    for command in ((), ("validate",)):
        done = run_cli(*command, *TINY, "trainer.device=auto", *typed, CXX="no-such-compiler", CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 2
        assert re.match(f"runner: DeviceError: {said}", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_process_exchanges_nothing_by_whichever_backend(tiny, no_gpu):
    assert preflight(runner.load_config(tiny("dist.backend=nccl", "trainer.device=auto"))).plan.world_size == 1


def test_several_processes_do_not_share_an_mps_device(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(DeviceError, match=r"trainer\.device = auto: 2 processes can't train on MPS.*procs_per_node=1"):
        preflight(runner.load_config(tiny("dist.procs_per_node=2", "trainer.device=auto")))


def test_a_backend_that_pytorch_was_built_without_is_refused(tiny, no_gpu, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name == "nccl")
    with pytest.raises(DeviceError, match=r"dist\.backend = auto: .*built without gloo; there is nccl"):
        preflight(runner.load_config(tiny("dist.procs_per_node=2")))


def test_top5_is_no_metric_to_choose_by_where_five_guesses_cannot_miss(tiny):
    few = tiny("trainer.monitor=val_top5", "data.num_classes=5")
    with pytest.raises(
        ConfigError, match=r"trainer\.monitor = 'val_top5': is 100% from the start.*5 classes"
    ) as caught:
        preflight(runner.load_config(few))
    assert "use trainer.monitor=val_top1" in str(caught.value)
    preflight(runner.load_config(tiny("trainer.monitor=val_top5", "data.num_classes=6")))


@pytest.mark.parametrize(("metric", "said"), [("val_top5", "is 100%"), ("[val_loss,val_top5]", "val_top5 is 100%")])
def test_nor_does_a_sweep_search_by_it(tiny, metric, said):
    with pytest.raises(ConfigError, match=rf"sweep\.metric = .*: {said} from the start.*use sweep\.metric=val_top1"):
        preflight(runner.load_config(tiny(f"sweep.metric={metric}", "data.num_classes=5")))
    preflight(runner.load_config(tiny(f"sweep.metric={metric}", "data.num_classes=6")))


def test_a_run_that_has_begun_with_it_goes_on(tiny, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last").write_text("0001-00000001")
    preflight(runner.load_config(tiny("trainer.monitor=val_top5", "data.num_classes=5")), tmp_path)
