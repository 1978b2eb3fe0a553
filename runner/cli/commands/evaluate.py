"""`python -m runner evaluate run=DIR [overrides]`: measure a run's weights exactly, on its own images or others."""

from __future__ import annotations

from pathlib import Path

from runner.base.console import LOGGER, show_error
from runner.base.errors import EXIT_DONE, LaunchError, RunnerError, StoppedOnRequest
from runner.base.files import named_write_errors
from runner.base.stop import StopRequest
from runner.base.user_paths import refuse_ways_out, typed_path
from runner.cli.call import read_call
from runner.cli.combinations import combinations
from runner.config.arguments import MULTIRUN
from runner.config.saved import load_saved
from runner.config.schema.calls import EvaluateCall
from runner.data.splits import Splits
from runner.evaluation.files import check_free
from runner.evaluation.subject import Subject, load_config, open_images, output_folder, read_classes
from runner.launch.environment import adopted_place
from runner.launch.plan import choose_launch
from runner.launch.preflight import Ready
from runner.launch.ranks.refused import refusals_told
from runner.run.run_folder import check_writable, read_record
from runner.training.work import Evaluation


def run(argv: list[str]) -> int:
    """Evaluate what `argv` describes; of several calls (-m) a refused one does not end the others.

    Raises:
        CheckpointError: the folder is no run folder, or the weights are missing or damaged.
        InvalidDatasetError: the images have classes that the model does not know, or can't be read.
        OutputError: the result can't be written, or would replace another.
        RunnerError: whatever else is wrong with the call, the machine or the images; of several calls the first.
    """
    calls = combinations(argv)
    place = adopted_place()
    if place is not None and place.world_size != 1 and MULTIRUN & set(argv):
        raise LaunchError(
            f"-m within {place.starter}: each of the processes would run all evaluations; start them outside, with "
            "dist.procs_per_node=N for several processes each, or start one here"
        )
    failures: list[RunnerError] = []
    with StopRequest() as stop:
        for call in calls:
            try:
                _evaluate(call, stop)
            except StoppedOnRequest:
                raise
            except RunnerError as error:
                if len(calls) == 1:
                    raise
                show_error(error)
                failures.append(error)
    if failures:
        raise failures[0]
    return EXIT_DONE


def _evaluate(argv: list[str], stop: StopRequest) -> None:
    with refusals_told(adopted_place()) as passed:
        ready, work, folder = _ready(argv)
        passed.set()
    from runner.launch import launch  # noqa: PLC0415 - torch only once config and data are good

    with named_write_errors(folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    launch(ready, work, folder=folder, stop=stop)


def _ready(argv: list[str]) -> tuple[Ready, Evaluation, Path]:
    """Check everything that can be wrong; the result goes to the folder."""
    call, overrides = read_call("evaluate", EvaluateCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_ways_out(run_dir)
    record = read_record(run_dir)
    output = None if call.output is None else typed_path(call.output, "output").resolve()
    check_writable(output or run_dir / "evaluation", key="output")
    config, classes = load_config(run_dir, overrides), read_classes(run_dir)
    plan = choose_launch(config)
    saved = load_saved(run_dir, only_reads=True)
    images = open_images(config, saved, overrides, classes, call.split, record=record)
    from runner.dist.device import choose_device, choose_precision  # noqa: PLC0415 - torch only once the data is good
    from runner.evaluation.weights import choose_weights  # noqa: PLC0415
    from runner.model import check_trained  # noqa: PLC0415

    choose_precision(config.trainer, choose_device(config.trainer))
    weights = choose_weights(run_dir, call.checkpoint, call.weights)
    check_trained(weights.file, config.model, len(classes))
    subject = Subject(split=call.split, data=images.data, weights=weights.to_json(), differences=images.differences)
    folder = output or output_folder(run_dir, images, weights=weights.label, split=call.split)
    check_free(folder, subject, is_own=output is None)
    for note in images.notes:
        LOGGER.info("            %s", note)
    # BatchNorm has its statistics from training, so a run of many GPUs is evaluated anywhere.
    dist = config.dist.model_copy(update={"sync_batchnorm": False})
    config = config.model_copy(update={"dist": dist})
    for difference in images.differences:
        LOGGER.warning("the images are not those of the training, so neither is the result: %s", difference)
    # The images to evaluate stand for the validation split; nothing is trained.
    splits = Splits(classes=classes, train=images.source, val=images.source, test=None, notes=())
    work = Evaluation(subject=subject, weights_file=weights.file)
    return Ready(config=config, splits=splits, plan=plan), work, folder
