"""Models of timm from training to use, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import runner
from tests.conftest import TINY

VIT = ("model=timm", "model.name=test_vit", "model.img_size=32", "model.drop_path_rate=0.3", "optimizer.lr=0.001")


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoints = run / "checkpoints"
    return load_file(checkpoints / (checkpoints / "last").read_text().strip() / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def trained(run_cli, output: Path, *more: str) -> Path:
    done = run_cli(*TINY, *VIT, f"output_dir={output}", *more)
    assert done.returncode == 0, done.stderr
    (record,) = output.glob("*/*/run.json")
    return record.parent


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_the_draws_of_drop_path_are_the_same_after_a_resume(run_cli, tmp_path, processes):
    many = (f"dist.procs_per_node={processes}", f"data.batch_size={8 // processes}")
    whole = trained(run_cli, tmp_path / "whole", *many)
    stopped = trained(run_cli, tmp_path / "stopped", *many, "trainer.max_steps=3", "trainer.checkpoint_every=1")
    done = run_cli("resume", f"run={stopped}", "trainer.max_steps=null")
    assert done.returncode == 0, done.stderr
    assert same(weights(whole), weights(stopped))
    if processes == 1:
        without = trained(run_cli, tmp_path / "without", "model.drop_path_rate=0")
        assert not same(weights(whole), weights(without))


@pytest.mark.long
def test_a_trained_model_is_loaded_evaluated_scored_and_exported(run_cli, tmp_path, write_image):
    run = trained(run_cli, tmp_path / "outputs", "trainer.ema_decay=0.5", "trainer.freeze_backbone_epochs=1")
    loaded = runner.load_model(run)
    packaged = load_file(run / "model" / "model.safetensors")
    assert same(dict(loaded.module.state_dict()), packaged)
    assert json.loads((run / "model" / "model.json").read_text())["architecture"]["name"] == "test_vit"
    for command in (("evaluate", f"run={run}"), ("export", f"run={run}", "format=onnx"), ("report", f"run={run}")):
        done = run_cli(*command)
        assert done.returncode == 0, done.stderr
    assert (run / "export" / "model.onnx").is_file()
    images = tmp_path / "images"
    for number in range(3):
        write_image(images / f"{number}.png", number)
    done = run_cli("predict", f"run={run}", f"input={images}", "output=scores.csv")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 4


def test_doctor_trains_a_few_steps_of_it(run_cli):
    done = run_cli("doctor", *TINY, *VIT, "doctor.seconds=0.1", "format=json")
    assert done.returncode == 0, done.stderr
    assert "test_vit" in done.stdout
