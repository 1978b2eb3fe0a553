"""The range test of trainer.find_lr: what it finds, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import runner
from runner.base.files import sha256_of
from runner.training.range_test import NUM_STEPS, smoothed, steepest
from tests.conftest import SMALL_NET, TINY


def trained(outputs: Path, *settings: str) -> Path:
    given = (*TINY, *SMALL_NET, f"output_dir={outputs}", "trainer.max_steps=3", *settings)
    return runner.fit(runner.load_config(given)).run_dir


@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer=sgd", "trainer.ema_decay=0.8", "trainer.accumulate_steps=2"),
        ("optimizer=adamw", "trainer.freeze_backbone_epochs=1", "trainer.mixup_alpha=0.2"),
        ("optimizer=lamb", "data.balance=loss_weights"),
        pytest.param(("optimizer=muon", "dist.procs_per_node=2", "data.batch_size=4"), marks=pytest.mark.long),
    ],
    ids=lambda settings: settings[0],
)
def test_the_training_does_not_change(tmp_path: Path, settings: tuple[str, ...]) -> None:
    plain, tested = (
        trained(tmp_path / "plain", *settings),
        trained(tmp_path / "tested", *settings, "trainer.find_lr=true"),
    )
    found = json.loads((tested / "range_test.json").read_text())
    assert 1 < len(found["train_loss"]) <= NUM_STEPS
    assert len(found["optimizer.lr"]) == len(found["train_loss"]) == len(found["smoothed_loss"])
    assert (tested / "range_test.png").read_bytes().startswith(b"\x89PNG")
    newest = (plain / "checkpoints" / "last").read_text().strip()
    for name in ("model/model.safetensors", f"checkpoints/{newest}/optimizer.safetensors"):
        assert sha256_of(tested / name) == sha256_of(plain / name), name
    rows = [(run / "metrics.jsonl").read_text() for run in (plain, tested)]
    of_training = [[json.loads(row)["train_loss"] for row in text.splitlines()] for text in rows]
    assert of_training[0] == of_training[1]


def test_it_ends_where_the_loss_diverges(tmp_path: Path) -> None:
    run = trained(tmp_path, "trainer.find_lr=true", "data.num_train=800", "trainer.epochs=4")
    found = json.loads((run / "range_test.json").read_text())
    assert 20 < len(found["train_loss"]) < NUM_STEPS
    assert found["optimizer.lr"][0] < found["suggestion"] < found["optimizer.lr"][-1]


def test_the_rate_where_the_loss_falls_fastest() -> None:
    rates = np.geomspace(1e-6, 1, 61)
    # Falls around 1e-3, rises from 0.1 on.
    losses = 2 - np.tanh(2 * (np.log10(rates) + 3)) + np.where(rates > 0.1, 50 * rates, 0)
    assert steepest(rates.tolist(), losses.tolist()) == pytest.approx(1e-3)
    assert steepest(rates.tolist(), rates.tolist()) is None
    assert steepest(rates.tolist()[:19], losses.tolist()[:19]) is None


def test_a_constant_loss_is_its_own_average() -> None:
    assert smoothed([2.5] * 30) == pytest.approx([2.5] * 30)
