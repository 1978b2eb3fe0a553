"""`python -m runner evaluate run=DIR|model=… [overrides]`: exact metrics of a model, on its run's images or others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, ConfigError, LaunchError, Problem
from runner.base.files import named_write_errors
from runner.base.stop import StopRequest
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import call_each, read_call
from runner.config.arguments import MULTIRUN
from runner.config.saved import load_saved
from runner.config.schema import Config
from runner.config.schema.calls.of_trained import EvaluateCall
from runner.data.splits import Splits
from runner.evaluation.evaluation_files import check_free
from runner.evaluation.evaluation_inputs import (
    EvaluationImages,
    EvaluationInputs,
    check_choice,
    load_evaluation_config,
    load_package_config,
    open_images,
    output_folder,
)
from runner.launch.environment import adopted_rank, refusal_shared
from runner.launch.plan import choose_launch
from runner.launch.preflight import Ready, check_machine
from runner.run.contents import read_classes
from runner.run.package import lacks_reference, read_package
from runner.run.run_folder import check_writable, read_record
from runner.tools.registry.resolve import folder_of
from runner.training.attempt import Evaluation

if TYPE_CHECKING:
    from runner.evaluation.weights import ChosenWeights


def run(argv: list[str]) -> int:
    """Evaluate a run, or each of several (-m), where an error of one does not end the others.

    Raises:
        CheckpointError: the folder is no run folder, or the weights are missing or damaged.
        InvalidDatasetError: the images have classes that the model does not have, or can't be read.
        OutputError: the result can't be written, or would replace another.
        RegistryError: the registry has no such version, or its files are not those that were registered.
        StoppedOnRequest: a stop was requested; the other calls don't run.
        RunnerError: another error; of several calls the first.
    """
    place = adopted_rank()
    if place is not None and place.world_size != 1 and MULTIRUN & set(argv):
        raise LaunchError(
            f"-m within {place.starter}: each of the processes would run all evaluations; start them outside, with "
            "dist.procs_per_node=N for several processes each, or start one here"
        )
    with StopRequest() as stop:
        call_each(argv, lambda arguments: _evaluate(arguments, stop))
    return EXIT_DONE


def _evaluate(argv: list[str], stop: StopRequest) -> None:
    with refusal_shared(adopted_rank()) as passed:
        ready, work, folder = _ready(argv)
        passed.set()
    from runner.launch import launch  # noqa: PLC0415 - torch only after config and data are checked

    with named_write_errors(folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    launch(ready, work, folder=folder, stop=stop)


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is evaluated."""

    config: Config
    classes: tuple[str, ...]
    images: EvaluationImages
    weights: ChosenWeights
    folder: Path
    """For the results."""
    package: Path | None = None
    """A package of these weights that lacks the profile of these images."""


def _ready(argv: list[str]) -> tuple[Ready, Evaluation, Path]:
    """Check the call; the evaluation, and the folder for its results."""
    call, overrides = read_call("evaluate", EvaluateCall, argv)
    place = folder_of(call.run, call.model, call.registry.uri)
    subject = _of_run(call, overrides, place) if call.model is None else _of_package(call, overrides, place)
    config, images, weights, classes = subject.config, subject.images, subject.weights, subject.classes
    from runner.model import check_trained  # noqa: PLC0415

    check_trained(weights.file, config.model, len(classes), config.data.channels)
    inputs = EvaluationInputs(
        split=call.split, data=images.data, weights=weights.to_json(), differences=images.differences
    )
    check_free(subject.folder, inputs, is_own=call.output is None)
    for note in images.notes:
        LOGGER.info("            %s", note)
    for difference in images.differences:
        LOGGER.warning(
            "the images are not those of the run, so the result is not comparable with its own: %s", difference
        )
    # The images to evaluate take the place of both splits; nothing is trained.
    splits = Splits(classes=classes, train=images.source, val=images.source, test=None, notes=())
    work = Evaluation(inputs=inputs, weights_file=weights.file, package=subject.package)
    return Ready(config=config, splits=splits, plan=choose_launch(config)), work, subject.folder


def _of_run(call: EvaluateCall, overrides: list[str], run_dir: Path) -> _Subject:
    refuse_outside_links(run_dir)
    record = read_record(run_dir)
    output = None if call.output is None else typed_path(call.output, "output").resolve()
    check_writable(output or run_dir / "evaluation", key="output")
    config, classes = load_evaluation_config(run_dir, overrides), read_classes(run_dir)
    choose_launch(config)
    saved = load_saved(run_dir, only_reads=True)
    images = open_images(config, saved, overrides, classes, call.split, record=record)
    config = _checked(config)
    from runner.evaluation.weights import choose_weights  # noqa: PLC0415

    weights = choose_weights(run_dir, call.checkpoint, call.weights)
    folder = output or output_folder(run_dir, images, weights=weights.label, split=call.split)
    # With an output elsewhere nothing is written to the run.
    is_reference = output is None and call.split == "val" and images.is_own and not images.differences
    package = run_dir / "model" if is_reference and lacks_reference(run_dir / "model", weights.sha256) else None
    return _Subject(config=config, classes=classes, images=images, weights=weights, folder=folder, package=package)


def _of_package(call: EvaluateCall, overrides: list[str], place: Path) -> _Subject:
    if call.output is None:
        message = "a package alone needs a folder for the results: output=DIR; nothing is written to the package"
        raise ConfigError([Problem(key="output", message=message)])
    folder = typed_path(call.output, "output").resolve()
    check_writable(folder, key="output")
    package = read_package(place)
    card = package.card
    check_choice(call, card)
    config = load_package_config(card, overrides)
    choose_launch(config)
    images = open_images(config, None, overrides, card.classes, call.split, record={})
    config = _checked(config)
    from runner.evaluation.weights import packaged_weights  # noqa: PLC0415

    weights = packaged_weights(package)
    return _Subject(config=config, classes=card.classes, images=images, weights=weights, folder=folder)


def _checked(config: Config) -> Config:
    """The config, once this machine can do what it asks for."""
    # Evaluation uses BatchNorm's running statistics, so sync_batchnorm, which needs CUDA, is not needed.
    config = config.model_copy(update={"dist": config.dist.model_copy(update={"sync_batchnorm": False})})
    check_machine(config, choose_launch(config))
    return config
