"""torch.compile in a whole run, in a process of its own: it leaves compilers and caches behind."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ROOT, TINY
from tests.made_package import make_package

NET = """
from torch import nn

def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes),
    )
"""


@pytest.mark.long
def test_a_compiled_model_with_a_moving_average_trains_and_goes_on(run_cli, tmp_path):
    """The last batches are smaller than the others, so that it is compiled for any number of images too."""
    site = make_package(tmp_path / "site", "compiled_net", NET, compiled_net="compiled_net:net")
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/inductor"}
    model = ["model=custom", "model.name=compiled_net", "trainer.compile=true", "trainer.ema_decay=0.9"]
    done = run_cli(*TINY, *model, "data.num_train=45", "data.num_val=21", "trainer.max_steps=7", **environment)
    assert done.returncode == 0, done.stderr
    (record_file,) = tmp_path.glob("outputs/*/*/run.json")
    done = run_cli("resume", f"run={record_file.parent}", "trainer.max_steps=null", **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(record_file.read_text())["status"] == "completed"
    rows = [json.loads(line) for line in (record_file.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [6, 12]
    assert all("val_ema_loss" in row for row in rows)
