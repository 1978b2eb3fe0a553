"""The evaluation of a split: per-class measures, averages and calibration, metrics.json, and lines for the log."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.base.console import LOGGER, progress_line
from runner.base.stop import StopRequest
from runner.config.schema.trainer import can_miss_top5
from runner.evaluation.confusion import Confusion, Counts
from runner.evaluation.evaluation_files import write_evaluation
from runner.evaluation.evaluation_inputs import EvaluationInputs
from runner.evaluation.image_features import profile_of
from runner.evaluation.per_image import EvaluationSplit, PerImageResults, Scorer, evaluate_per_image

Shares = npt.NDArray[np.float64]
_NUM_BINS = 15
_MAX_SHOWN_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Measures of each class, shape (classes,); 0 where the denominator is 0, as in scikit-learn."""

    precision: Shares
    """Of the images predicted as this class, the fraction that belongs to it."""
    recall: Shares
    """Of the images of this class, the fraction predicted as it."""
    f1: Shares
    """Harmonic mean of precision and recall, in [0, 1]."""
    support: Counts
    """Number of images of this class."""

    def macro_average(self) -> dict[str, float]:
        """The unweighted mean over the classes that have images."""
        return self._average((self.support > 0).astype(np.float64))

    def weighted_average(self) -> dict[str, float]:
        """The mean over all classes, weighted by their number of images."""
        return self._average(self.support.astype(np.float64))

    def _average(self, weights: Shares) -> dict[str, float]:
        return {name: float(np.average(getattr(self, name), weights=weights)) for name in ("precision", "recall", "f1")}


def per_class(confusion: Confusion) -> PerClass:
    """Precision, recall, F1 and support of each class."""
    hits, support, guesses = confusion.hits, confusion.of_truth, confusion.of_prediction

    def ratio(numerator: Counts, denominator: Counts) -> Shares:
        return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)

    return PerClass(
        precision=ratio(hits, guesses),
        recall=ratio(hits, support),
        f1=ratio(2 * hits, support + guesses),
        support=support,
    )


def expected_calibration_error(probability: Shares, is_right: npt.NDArray[np.bool_]) -> float:
    """How far predicted probabilities are from the accuracy, in [0, 1].

    Guo et al. 2017, On Calibration of Modern Neural Networks: Σ |B| / N · |accuracy(B) − mean probability(B)| over 15
    bins of equal width, ((b − 1) / 15, b / 15].

    Args:
        probability: of the predicted class of each image, shape (N,), N ≥ 1.
        is_right: whether the prediction is right, shape (N,).
    """
    bins = np.clip(np.ceil(probability * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    gaps = np.bincount(bins, weights=is_right - probability, minlength=_NUM_BINS)
    return float(np.abs(gaps).sum() / len(probability))


def class_measures(labels: Counts, predicted: Counts, classes: tuple[str, ...]) -> dict[str, Any]:
    """The entries of metrics.json that speak of classes: averages, per-class measures, confusion matrix.

    Args:
        labels: class index of each image, shape (N,), N ≥ 1.
        predicted: predicted class index, shape (N,).
        classes: names in index order.
    """
    confusion = Confusion.of(labels, predicted, len(classes))
    each = per_class(confusion)
    return {
        "macro_average": each.macro_average(),
        "weighted_average": each.weighted_average(),
        "classes": list(classes),
        "per_class": [
            {
                "class": name,
                "precision": float(each.precision[number]),
                "recall": float(each.recall[number]),
                "f1": float(each.f1[number]),
                "support": int(each.support[number]),
            }
            for number, name in enumerate(classes)
        ],
        "confusion_matrix": confusion.to_json(),
    }


def image_measures(results: PerImageResults, labels: Counts, classes: tuple[str, ...]) -> dict[str, Any]:
    """The entries of metrics.json that the main process alone has: the profile of the images, and their classes."""
    profile = profile_of(results.features, len(classes)).model_dump(mode="json")
    return {"profile": profile, **class_measures(labels, results.predicted, classes)}


def evaluate_split(
    scorer: Scorer,
    split: EvaluationSplit,
    *,
    inputs: EvaluationInputs,
    classes: tuple[str, ...],
    folder: Path,
    stop: StopRequest,
) -> dict[str, Any]:
    """Evaluate a split, each image exactly once over all processes; every process must call it.

    Args:
        scorer: the model.
        split: the images.
        inputs: what metrics.json says of both.
        classes: names in index order.
        folder: the folder that the main process writes the result to.
        stop: polled between batches.

    Returns:
        The content of metrics.json; in all but the main process without :func:`image_measures`.

    Raises:
        StoppedOnRequest: when any process was asked to stop; nothing is written then.
        InvalidDatasetError: an image can't be read, and data.on_bad_image is error; or too many can't.
        OutputError: when the result can't be written.
    """
    with progress_line() if scorer.dist.is_main else nullcontext() as line:
        results = evaluate_per_image(scorer, split, stop=stop, what=f"the {inputs.split} split", line=line)
    labels, counts = split.source.labels[results.images], results.counts
    metrics = {
        **inputs.to_json(),
        "device": scorer.dist.device.type,
        "precision": scorer.precision.name,
        "count": counts.count,
        "num_skipped": len(counts.bad),
        "correct": counts.correct,
        "correct_top5": counts.correct_top5,
        "top1": counts.top1,
        "top5": counts.top5,
        "loss": counts.loss,
        "skipped": [{"image": bad.image, "reason": bad.reason} for bad in counts.bad],
        "expected_calibration_error": expected_calibration_error(results.probability, labels == results.predicted),
    }
    if scorer.dist.is_main:
        scorer.dist.heartbeat()
        metrics |= image_measures(results, labels, classes)
        write_evaluation(folder, metrics, results, split.source)
        scorer.dist.heartbeat()
    return metrics


def summary_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """The part of metrics.json that run.json and model.json repeat."""
    names = ("count", "num_skipped", "correct", "top1", "top5", "loss", "expected_calibration_error")
    return {name: metrics[name] for name in names}


def log_summary(metrics: dict[str, Any]) -> None:
    """Log the result of an evaluation in one line."""
    LOGGER.info(
        "%-11s %s images%s: top-1 %.2f%%%s, loss %.4f, calibration error %.2f%%",
        metrics["split"],
        f"{metrics['count']:,}",
        f" ({metrics['num_skipped']:,} skipped)" if metrics["num_skipped"] else "",
        100 * metrics["top1"],
        f", top-5 {metrics['top5']:.2%}" if can_miss_top5(len(metrics["per_class"])) else "",
        metrics["loss"],
        100 * metrics["expected_calibration_error"],
    )


def log_per_class(metrics: dict[str, Any], folder: Path) -> None:
    """Log the table of classes (of more than 20 only those of the lowest F1), and the folder of the result."""
    entries = metrics["per_class"]
    if len(entries) > _MAX_SHOWN_CLASSES:
        present = [entry for entry in entries if entry["support"]]
        entries = sorted(present, key=lambda entry: float(entry["f1"]))[:_MAX_SHOWN_CLASSES]
        LOGGER.info("            the %d classes of the lowest F1; all are in per_class.csv", len(entries))
    names = [" ".join(entry["class"].split()) for entry in entries]
    width = min(max(len(name) for name in [*names, "weighted average"]), 40)
    lines = [f"{'class':<{width}}  precision  recall      F1  images"]
    for name, entry in zip(names, entries, strict=True):
        lines.append(_row(name[:width], width, entry, f"{entry['support']:>8,}"))
    for key in ("macro_average", "weighted_average"):
        lines.append(_row(key.replace("_", " "), width, metrics[key], ""))
    LOGGER.info("%s", "\n".join(lines))
    LOGGER.info("results     %s", folder)


def _row(name: str, width: int, shares: dict[str, Any], support: str) -> str:
    line = f"{name:<{width}}  {shares['precision']:>9.2%} {shares['recall']:>7.2%} {shares['f1']:>7.2%}{support}"
    return line.rstrip()
