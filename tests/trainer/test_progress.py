import json

import pytest

from runner.trainer.progress import Best, Progress


def best(metric: str, value: float) -> Best:
    return Best(metric=metric, value=value, epoch=1, checkpoint="0001-00000001", weights="raw")


@pytest.mark.parametrize(
    ("metric", "so_far", "value", "expected"),
    [
        ("val_top1", 0.5, 0.6, True),
        ("val_top1", 0.5, 0.5, False),
        ("val_top1", 0.5, 0.4, False),
        ("val_loss", 0.5, 0.4, True),
        ("val_loss", 0.5, 0.5, False),
        ("val_loss", 0.5, 0.6, False),
    ],
)
def test_better_means_higher_accuracy_or_lower_loss(metric, so_far, value, expected):
    assert Progress(best=best(metric, so_far)).improves(metric, value) is expected
    assert Progress().improves(metric, value)


def test_patience_counts_epochs_without_improvement_over_the_best_loss():
    progress = Progress()
    counts = []
    # Each of the last three beats its predecessor or not, but none beats 0.5.
    for loss in (0.9, 0.5, 0.8, 0.6, 0.55):
        progress.end_epoch([], loss)
        counts.append(progress.epochs_without_improvement)
    assert counts == [0, 0, 1, 2, 3]
    progress.end_epoch([], 0.49)
    assert progress.epochs_without_improvement == 0


def test_steps_advance_within_an_epoch_and_its_end_turns_to_the_next():
    progress = Progress()
    progress.advance(8)
    progress.advance(16)
    assert (progress.epoch, progress.position, progress.step) == (0, 16, 2)
    progress.end_epoch([], 1.0)
    assert (progress.epoch, progress.position, progress.step) == (1, 0, 2)


def test_the_best_of_all_candidates_is_kept_and_of_a_tie_the_earlier():
    progress = Progress()
    raw, average, later = best("val_top1", 0.5), best("val_top1", 0.6), best("val_top1", 0.6)
    progress.end_epoch([raw, average], 1.0)
    assert progress.best is average
    progress.end_epoch([later], 1.0)
    assert progress.best is average


@pytest.mark.parametrize(
    "progress", [Progress(), Progress(epoch=2, position=3, step=9, best=best("val_top1", 0.1 + 0.2))]
)
def test_progress_survives_json(progress):
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
