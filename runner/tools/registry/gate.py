"""Whether one version is better than another on the same images, and how sure that is: a paired bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap

from runner.base.console import LOGGER, progress_line
from runner.base.errors import InvalidDatasetError
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.config.schema.calls.of_models import ModelsPromoteCall
from runner.data.splits import Splits
from runner.dist.collectives import single_process
from runner.dist.device import choose_device, choose_precision, describe_device, set_determinism
from runner.evaluation.evaluation_inputs import load_package_config, open_images
from runner.evaluation.per_image import evaluate_per_image
from runner.run.package import read_package
from runner.training.assemble_trained import assemble_evaluation
from runner.training.device_errors import batch_size_advice, named_device_errors

NUM_RESAMPLES = 9_999
_MOST_NUMBERS = 4_000_000  # of the resamples that are in memory at once
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a candidate compares with the present holder of an alias."""

    metric: str
    count: int
    """Images that both have scored."""
    candidate: float
    holder: float
    advantage: float
    """How much better the candidate is: above 0, also for a loss, it is better."""
    least_advantage: float
    """With the confidence that was asked for, it is better by at least this."""
    share_better: float
    """Of the resamples, the share in which the candidate is better, in [0, 1]."""
    confidence: float
    """Which share was asked for."""

    @property
    def is_better(self) -> bool:
        """Whether the candidate is better with this confidence."""
        return self.advantage > 0 and self.share_better >= self.confidence

    def __str__(self) -> str:
        is_loss = self.metric == "loss"
        candidate, holder = (f"{value:.4f}" if is_loss else f"{value:.2%}" for value in (self.candidate, self.holder))
        advantage, least = (
            f"{value:+.4f}" if is_loss else f"{100 * value:+.2f} points"
            for value in (self.advantage, self.least_advantage)
        )
        return (
            f"{self.metric} {candidate} against {holder} on {self.count:,} images, an advantage of {advantage}, at "
            f"least {least} with confidence {self.confidence:g}; better in {self.share_better:.2%} of "
            f"{NUM_RESAMPLES:,} bootstrap resamples, at least {self.confidence:.2%} are asked for"
        )


@freed_memory_kept()
def compare_packages(candidate: Path, holder: Path, call: ModelsPromoteCall, stop: StopRequest) -> Comparison:
    """Evaluate two packages on the same images, and compare them image by image.

    Args:
        candidate: a package folder.
        holder: the package folder of the version that has the alias.
        call: the images, the metric, the confidence and the device.
        stop: ends the evaluation between two batches.

    Raises:
        InvalidDatasetError: there are no images, too few, or a class that one of the models does not have.
        RunnerError: a package is damaged, or this machine can't evaluate it.
    """
    found = _scores(candidate, call, stop, "the candidate"), _scores(holder, call, stop, "the holder of the alias")
    both = sorted(found[0].keys() & found[1].keys())
    new, old = (np.array([scores[image] for image in both]) for scores in found)
    if len(both) < 2:
        raise InvalidDatasetError(f"{call.if_better_on}: {len(both)} image is too few to compare two models on")
    sign = -1.0 if call.metric == "loss" else 1.0
    advantages = sign * (new - old)
    least, share = paired_bootstrap(advantages, confidence=call.confidence, seed=call.seed)
    return Comparison(
        metric=call.metric,
        count=len(both),
        candidate=float(new.mean()),
        holder=float(old.mean()),
        advantage=float(advantages.mean()),
        least_advantage=least,
        share_better=share,
        confidence=call.confidence,
    )


def paired_bootstrap(advantages: Values, *, confidence: float, seed: int) -> tuple[float, float]:
    """Resample images, each with the results of both models (Efron and Tibshirani, 1993, chapter 13: percentiles).

    Args:
        advantages: of each image, by how much one model is better than the other; at least two.
        confidence: of the lower bound, in [0.5, 1).
        seed: of the resamples.

    Returns:
        The lower bound of the mean advantage, and the share of the resamples in which it is above 0.
    """
    result = bootstrap(
        (advantages,),
        np.mean,
        n_resamples=NUM_RESAMPLES,
        batch=max(1, _MOST_NUMBERS // len(advantages)),
        confidence_level=confidence,
        alternative="greater",
        method="percentile",
        rng=seed,
    )
    return float(result.confidence_interval.low), float((result.bootstrap_distribution > 0).mean())


def _scores(package: Path, call: ModelsPromoteCall, stop: StopRequest, what: str) -> dict[str, float]:
    """The result of each image by its path: 1 where the first guess is right and 0 elsewhere, or its cross-entropy."""
    read = read_package(package)
    card, root = read.card, str(call.if_better_on).replace("'", "\\'")
    overrides = [
        "data=folder",
        f"data.root='{root}'",
        f"data.batch_size={call.batch_size}",
        f"trainer.device={call.device}",
    ]
    config = load_package_config(card, overrides)
    images = open_images(config, None, overrides, card.classes, call.split, record={})
    device = choose_device(config.trainer)
    precision = choose_precision(config.trainer, device)
    set_determinism(deterministic=config.trainer.deterministic)
    LOGGER.info("evaluating  %s: %s", what, read.weights_file)
    LOGGER.info("device      %s, %s (%s)", describe_device(device), precision.name, precision.reason)
    splits = Splits(classes=card.classes, train=images.source, val=images.source, test=None, notes=())
    with named_device_errors(device, batch_size_advice("batch_size", call.batch_size)), progress_line() as line:
        scorer, split = assemble_evaluation(
            config, splits, call.split, read.weights_file, dist=single_process(device), precision=precision
        )
        results = evaluate_per_image(scorer, split, stop=stop, what=what, line=line)
    labels = np.asarray(split.source.labels)[results.images]
    values = results.loss if call.metric == "loss" else (results.predicted == labels).astype(np.float64)
    names = (split.source.describe(image) for image in results.images.tolist())
    return dict(zip(names, values.tolist(), strict=True))
