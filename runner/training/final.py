"""The detailed evaluation of the best weights after the training: on the validation split and on the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError, StoppedOnRequest
from runner.base.files import sha256_of
from runner.data.splits import Splits
from runner.evaluation.evaluation_inputs import EvaluationInputs, data_entry
from runner.evaluation.measures import evaluate_split, log_summary
from runner.evaluation.per_image import EvaluationSplit, Scorer
from runner.evaluation.weights import ChosenWeights, load_weights
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best
from runner.training.assemble import Assembled


def evaluate_best(assembled: Assembled, best: Best, splits: Splits, run_dir: Path) -> dict[str, dict[str, Any]]:
    """Evaluate the best weights on the validation split and, where there is one, on the test split.

    Every process must call it after the training; it loads the best weights into the trainer's model.

    Args:
        assembled: the parts of the training.
        best: the checkpoint and weights to evaluate.
        splits: the data set.
        run_dir: the run folder.

    Returns:
        The content of metrics.json, by split.

    Raises:
        StoppedOnRequest: a process was asked to stop; a resumed run evaluates again.
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
        for name, split, folder in passes:
            inputs = EvaluationInputs(split=name, data=data_entry(trainer.config.data), weights=chosen.to_json())
            scorer, stop = _scorer(trainer), trainer.placement.stop
            found[name] = evaluate_split(scorer, split, inputs=inputs, classes=splits.classes, folder=folder, stop=stop)
            if dist.is_main:
                log_summary(found[name])
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
    """Warn where the best weights give another value than at the end of their epoch."""
    value = float(metrics[best.metric.removeprefix("val_")])
    if value != best.value:
        # On a GPU, compiled, or resumed at another precision, rounding may change the class of an image.
        LOGGER.warning(
            "the best weights give %s = %.6f now and gave %.6f after epoch %d, because of rounding",
            best.metric,
            value,
            best.value,
            best.epoch,
        )
