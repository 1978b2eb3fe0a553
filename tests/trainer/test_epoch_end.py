"""The end of an epoch returns what it found; whose training it is decides what becomes of it."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from runner.dist.device import Precision
from runner.trainer.epoch_end import EpochResult, evaluate_epoch
from runner.trainer.evaluate import EvaluationResult
from runner.trainer.loop import Trainer
from runner.trainer.meter import Totals
from tests.trainer.test_waits import trainer_on


@pytest.fixture
def trained(tiny, tmp_path) -> Trainer:
    """At the end of its first epoch, which is not evaluated yet."""
    overrides = tiny("trainer.ema_decay=0.5", "data.on_bad_image=skip")
    trainer = trainer_on(torch.device("cpu"), Precision(name="fp32", reason=""), overrides, tmp_path)
    with closing(trainer.images.train_batches.stream(0, 0, 1)) as stream:
        trainer._train_epoch(stream)
    return trainer


def capture(trainer: Trainer) -> tuple[object, ...]:
    values, images = trainer.state.capture(), trainer.images
    plain = {key: value for key, value in values["meter"].items() if "second" not in key}
    tensors = [value.clone() for group in trainer.state.tensors().values() for value in group.values()]
    bad = [(bad.num_in_epoch, bad.summary()) for bad in (images.bad_train, images.bad_val)]
    return {**values, "meter": plain}, bad, [tensor.tolist() for tensor in tensors], trainer._saved_name


@pytest.mark.long
def test_it_changes_nothing_of_the_training(trained):
    before = capture(trained)
    train = trained.state.meter.read()
    calls = []
    with closing(trained.images.val_batches):
        result = evaluate_epoch(
            trained.state,
            trained.images,
            trained.placement,
            train,
            writer=trained.writer,
            before_batch=lambda: calls.append(None),
        )
    assert capture(trained) == before
    assert (result.epoch, result.step, result.checkpoint) == (1, 5, "0001-00000005")
    assert result.ema is not None
    assert len(calls) == 2 * 3, "before each batch of 8 of 24 images, of the weights and of their average"


def evaluation(loss: float, correct: int) -> EvaluationResult:
    return EvaluationResult(count=10, correct=correct, correct_top5=10, loss=loss)


def result(raw: EvaluationResult, ema: EvaluationResult | None) -> EpochResult:
    train = Totals(loss=20.0, correct=5, count=10)
    return EpochResult(epoch=3, step=15, learning_rate=0.1, train=train, raw=raw, ema=ema, checkpoint="0003-00000015")


def test_the_average_is_a_candidate_of_its_own():
    both = result(evaluation(0.5, 7), evaluation(0.6, 8))
    assert [(best.weights, best.value) for best in both.candidates("val_top1")] == [("raw", 0.7), ("ema", 0.8)]
    assert [(best.weights, best.value) for best in both.candidates("val_loss")] == [("raw", 0.5), ("ema", 0.6)]
    assert both.val_loss == 0.5
    alone = result(evaluation(0.5, 7), None)
    assert [best.weights for best in alone.candidates("val_top1")] == ["raw"]


def test_the_row_says_what_there_is():
    seconds = {"train_seconds": 2.0, "epoch_seconds": 3.0}
    row = result(evaluation(0.5, 7), None).row(seconds)
    assert (row["epoch"], row["step"], row["lr"], row["train_loss"], row["val_top1"]) == (3, 15, 0.1, 2.0, 0.7)
    assert (row["train_images_per_second"], row["epoch_seconds"]) == (5.0, 3.0)
    assert "val_ema_loss" not in row
    assert result(evaluation(0.5, 7), evaluation(0.6, 8)).row(seconds)["val_ema_top1"] == 0.8
