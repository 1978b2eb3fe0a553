"""What a training does with its best weights in the end: evaluates them in detail, and once on the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError, StoppedOnRequest
from runner.base.files import sha256_of
from runner.data.splits import Splits
from runner.evaluation.examine import EvaluationSplit, Scorer
from runner.evaluation.split import evaluate_split, tell
from runner.evaluation.subject import Subject, described
from runner.evaluation.weights import ChosenWeights, load_weights
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best
from runner.training.assemble import Assembled


def evaluate_best(assembled: Assembled, best: Best, splits: Splits, run_dir: Path) -> dict[str, dict[str, Any]]:
    """Evaluate the best weights on the validation split and, where there is one, on the test split.

    Every process must call it, once training is over: the trainer's model holds the best weights afterwards.

    Args:
        assembled: the parts of the run.
        best: whose weights are evaluated.
        splits: the data set.
        run_dir: the run folder.

    Returns:
        What metrics.json holds, by split.

    Raises:
        StoppedOnRequest: when any process was asked to stop; resuming the run does it again.
        InvalidDatasetError: an image of the test split can't be read; the run is trained and packaged by then.
    """
    trainer, dist, images = assembled.trainer, assembled.trainer.placement.dist, assembled.trainer.images
    chosen = _best_weights(trainer, best)
    load_weights(trainer.state.model, chosen.file, dist)
    val = EvaluationSplit(source=splits.val, batches=images.val_batches, bad_images=images.bad_val)
    passes = [("val", val, run_dir / "evaluation")]
    if assembled.test is not None:
        passes.append(("test", assembled.test, run_dir / "evaluation" / "test"))
    found: dict[str, dict[str, Any]] = {}
    try:
        for split, share, folder in passes:
            subject = Subject(split=split, data=described(trainer.config.data), weights=chosen.to_json())
            scorer, stop = _scorer(trainer), trainer.placement.stop
            found[split] = evaluate_split(
                scorer, share, subject=subject, classes=splits.classes, folder=folder, stop=stop
            )
            if dist.is_main:
                tell(found[split])
    except StoppedOnRequest as request:
        raise StoppedOnRequest(f"{request}, after training; everything is saved, and a resume evaluates") from None
    except InvalidDatasetError as error:
        raise InvalidDatasetError(
            f"training is done and the model is packaged, but it can't be evaluated: {error}; mend that, then resume"
        ) from error
    if dist.is_main:
        _compare(best, found["val"])
    return found


def _best_weights(trainer: Trainer, best: Best) -> ChosenWeights:
    file = trainer.writer.folder / best.checkpoint / f"{'ema' if best.weights == 'ema' else 'model'}.safetensors"
    # Only the main process is sure to see the file; it alone writes.
    digest = sha256_of(file) if trainer.placement.dist.is_main else ""
    return ChosenWeights(
        file=file, checkpoint="best", kind=best.weights, epoch=best.epoch, sha256=digest, is_automatic=True
    )


def _scorer(trainer: Trainer) -> Scorer:
    placement = trainer.placement
    return Scorer(
        module=trainer.state.model,
        normalizer=trainer.images.normalizer,
        dist=placement.dist,
        precision=placement.precision,
        memory_format=placement.memory_format,
    )


def _compare(best: Best, metrics: dict[str, Any]) -> None:
    """The same weights on the same images must give what they gave in their epoch."""
    value = float(metrics[best.metric.removeprefix("val_")])
    if value != best.value:
        # On a GPU, compiled, or resumed at another precision, rounding may tip a close decision.
        LOGGER.warning(
            "the best weights give %s = %.6f now and gave %.6f after epoch %d: other rounding",
            best.metric,
            value,
            best.value,
            best.epoch,
        )
