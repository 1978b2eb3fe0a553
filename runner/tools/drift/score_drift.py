"""Scores images as `predict` does, and compares them with the reference of the package."""

from __future__ import annotations

from contextlib import closing

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.config.schema.calls import DriftCall
from runner.evaluation.image_features import FeatureCounter
from runner.run.package import Package
from runner.tools.drift.drift_measures import DriftReport, compare_with_reference
from runner.tools.predict.inputs import Inputs
from runner.tools.predict.score import scored_batches


@freed_memory_kept()
def drift_of(package: Package, inputs: Inputs, *, call: DriftCall, stop: StopRequest) -> DriftReport:
    """How far images have drifted; those that can't be read are left out, with a warning.

    Args:
        package: a verified package.
        inputs: the images.
        call: threshold, batch size, workers, device and precision.
        stop: ends the scoring after a batch.

    Raises:
        CheckpointError: the package has no reference.
        InvalidDatasetError: none of the images has scores.
        StoppedOnRequest: a signal asked for it.
        DeviceError: this machine lacks the device, memory has run out, or a process that loads images died.
    """
    counter = FeatureCounter(package.reference)
    example: str | None = None
    batches = scored_batches(package, inputs, call=call, stop=stop, if_stopped=lambda: "nothing was written")
    with closing(batches):
        for scored, features in batches:
            counter.add(features)
            wrong = (pair for pair in zip(scored.names, scored.errors, strict=True) if pair[1] is not None)
            example = example or next((f"{name}: {error}" for name, error in wrong), None)
    num_left_out = len(inputs) - counter.num_images
    if counter.num_images == 0:
        raise InvalidDatasetError(f"none of {num_left_out:,} images can be scored; the first is {example}")
    if num_left_out:
        LOGGER.warning(
            "%s of %s images can't be scored and are left out; the first is %s", num_left_out, len(inputs), example
        )
    return compare_with_reference(package.reference, counter.counts, counter.num_images, call.threshold)
