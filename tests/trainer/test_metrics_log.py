"""What an epoch writes to the terminal and TensorBoard: top-5 only where five guesses can miss."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import MagicMock

import pytest

from runner.trainer.metrics_log import Recorder
from tests.made_runs import row


def logged(caplog: pytest.LogCaptureFixture, *, has_top5: bool) -> tuple[str, dict[str, float], dict[str, Any]]:
    folder, tensorboard = MagicMock(), MagicMock()
    caplog.set_level(logging.INFO, logger="runner")
    ema = {"val_ema_loss": 0.5, "val_ema_top1": 0.75, "val_ema_top5": 1.0}
    waits = {"data_wait_seconds": 0.1, "train_seconds": 1.0}
    Recorder(folder, tensorboard, MagicMock(), 3, has_top5=has_top5).epoch(row(1, **ema, **waits), None)
    return caplog.text, tensorboard.scalars.call_args.args[0], folder.append_metrics.call_args.args[0]


@pytest.mark.parametrize("has_top5", [True, False])
def test_top5_is_shown_where_it_can_miss_and_always_in_the_file(caplog, monkeypatch, has_top5):
    monkeypatch.setattr(logging.getLogger("runner"), "propagate", True)
    text, scalars, written = logged(caplog, has_top5=has_top5)
    assert ("val top-5" in text) == has_top5
    assert ({"val/top5", "val_ema/top5"} <= scalars.keys()) == has_top5
    assert {"val/top1", "val_ema/top1"} <= scalars.keys()
    assert written["val_top5"] == written["val_ema_top5"] == 1.0
    # Where another test has left the logger set up, each line comes twice.
    head, cells = dict.fromkeys(line for line in text.splitlines() if "top-1" in line or "1/3" in line)
    assert head.rstrip().endswith("seconds")
    assert ("%" in cells) and cells.count("%") == (3 if has_top5 else 2)
