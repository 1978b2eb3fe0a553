"""Evaluates one split in detail, and writes and says what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.console import LOGGER, progress_line
from runner.base.stop import StopRequest
from runner.data.source import ImageSource
from runner.evaluation.examine import EvaluationSplit, Findings, Scorer, examine
from runner.evaluation.files import write_evaluation
from runner.evaluation.measures import expected_calibration_error, of_classes
from runner.evaluation.subject import Subject

_MAX_SHOWN_CLASSES = 20


def evaluate_split(
    scorer: Scorer,
    share: EvaluationSplit,
    *,
    subject: Subject,
    classes: tuple[str, ...],
    folder: Path,
    stop: StopRequest,
) -> dict[str, Any]:
    """Evaluate a split, each image exactly once over all processes; every process must call it.

    Args:
        scorer: the model.
        share: of the split.
        subject: what is evaluated.
        classes: names in index order.
        folder: where the main process writes the result.
        stop: asks to stop.

    Returns:
        What metrics.json holds; in the processes that don't write it, only what is said of all classes together.

    Raises:
        StoppedOnRequest: when any process was asked to stop; nothing is written then.
        InvalidDatasetError: an image can't be read, and data.on_bad_image is error; or too many can't.
        OutputError: when the result can't be written.
    """
    what = f"the {subject.split} split"
    if not scorer.dist.is_main:
        findings = examine(scorer, share, stop=stop, what=what, line=None)
        return _overall(scorer, findings, share.source, subject)
    with progress_line() as line:
        findings = examine(scorer, share, stop=stop, what=what, line=line)
    scorer.dist.heartbeat()
    labels = share.source.labels[findings.images]
    metrics = _overall(scorer, findings, share.source, subject) | of_classes(labels, findings.predicted, classes)
    write_evaluation(folder, metrics, findings, share.source)
    scorer.dist.heartbeat()
    return metrics


def _overall(scorer: Scorer, findings: Findings, source: ImageSource, subject: Subject) -> dict[str, Any]:
    is_right = source.labels[findings.images] == findings.predicted
    counts = findings.counts
    return {
        **subject.to_json(),
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
        "expected_calibration_error": expected_calibration_error(findings.probability, is_right),
    }


def summary_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """The few numbers of an evaluation that run.json and model.json hold."""
    names = ("count", "num_skipped", "correct", "top1", "top5", "loss", "expected_calibration_error")
    return {name: metrics[name] for name in names}


def tell(metrics: dict[str, Any]) -> None:
    """Say in one line what came of an evaluation."""
    LOGGER.info(
        "%-11s %s images%s: top-1 %.2f%%, top-5 %.2f%%, loss %.4f, calibration error %.2f%%",
        metrics["split"],
        f"{metrics['count']:,}",
        f" ({metrics['num_skipped']:,} skipped)" if metrics["num_skipped"] else "",
        100 * metrics["top1"],
        100 * metrics["top5"],
        metrics["loss"],
        100 * metrics["expected_calibration_error"],
    )


def tell_classes(metrics: dict[str, Any], folder: Path) -> None:
    """Say how each class did, of many only those that did worst, and where the rest stands."""
    entries = metrics["per_class"]
    if len(entries) > _MAX_SHOWN_CLASSES:
        present = [entry for entry in entries if entry["support"]]
        entries = sorted(present, key=lambda entry: float(entry["f1"]))[:_MAX_SHOWN_CLASSES]
        LOGGER.info("            the %d classes of the lowest F1; all are in per_class.csv", len(entries))
    LOGGER.info("%s", "\n".join(_table(entries, metrics)))
    LOGGER.info("results     %s", folder)


def _table(entries: list[dict[str, Any]], metrics: dict[str, Any]) -> list[str]:
    names = [" ".join(entry["class"].split()) for entry in entries]
    width = min(max(len(name) for name in [*names, "weighted average"]), 40)
    lines = [f"{'class':<{width}}  precision  recall      F1  images"]
    for name, entry in zip(names, entries, strict=True):
        lines.append(_row(name[:width], width, entry, f"{entry['support']:>8,}"))
    for key in ("macro_average", "weighted_average"):
        lines.append(_row(key.replace("_", " "), width, metrics[key], ""))
    return lines


def _row(name: str, width: int, shares: dict[str, Any], support: str) -> str:
    line = f"{name:<{width}}  {shares['precision']:>9.2%} {shares['recall']:>7.2%} {shares['f1']:>7.2%}{support}"
    return line.rstrip()
