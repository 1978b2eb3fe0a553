"""`python -m runner evaluate run=DIR [overrides]`: exact metrics of a run's model, on its own images or others."""

from __future__ import annotations

from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, LaunchError
from runner.base.files import named_write_errors
from runner.base.stop import StopRequest
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import call_each, read_call
from runner.config.arguments import MULTIRUN
from runner.config.saved import load_saved
from runner.config.schema.calls import EvaluateCall
from runner.data.splits import Splits
from runner.evaluation.evaluation_files import check_free
from runner.evaluation.evaluation_inputs import EvaluationInputs, load_evaluation_config, open_images, output_folder
from runner.launch.environment import adopted_rank, refusal_shared
from runner.launch.plan import choose_launch
from runner.launch.preflight import Ready, check_machine
from runner.run.contents import read_classes
from runner.run.run_folder import check_writable, read_record
from runner.training.attempt import Evaluation


def run(argv: list[str]) -> int:
    """Evaluate a run, or each of several (-m), where an error of one does not end the others.

    Raises:
        CheckpointError: the folder is no run folder, or the weights are missing or damaged.
        InvalidDatasetError: the images have classes that the model does not have, or can't be read.
        OutputError: the result can't be written, or would replace another.
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


def _ready(argv: list[str]) -> tuple[Ready, Evaluation, Path]:
    """Check the call; the evaluation, and the folder for its results."""
    call, overrides = read_call("evaluate", EvaluateCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links(run_dir)
    record = read_record(run_dir)
    output = None if call.output is None else typed_path(call.output, "output").resolve()
    check_writable(output or run_dir / "evaluation", key="output")
    config, classes = load_evaluation_config(run_dir, overrides), read_classes(run_dir)
    plan = choose_launch(config)
    saved = load_saved(run_dir, only_reads=True)
    images = open_images(config, saved, overrides, classes, call.split, record=record)
    # Evaluation uses BatchNorm's running statistics, so sync_batchnorm, which needs CUDA, is not needed.
    config = config.model_copy(update={"dist": config.dist.model_copy(update={"sync_batchnorm": False})})
    from runner.evaluation.weights import choose_weights  # noqa: PLC0415
    from runner.model import check_trained  # noqa: PLC0415

    check_machine(config, plan)
    weights = choose_weights(run_dir, call.checkpoint, call.weights)
    check_trained(weights.file, config.model, len(classes), config.data.channels)
    inputs = EvaluationInputs(
        split=call.split, data=images.data, weights=weights.to_json(), differences=images.differences
    )
    folder = output or output_folder(run_dir, images, weights=weights.label, split=call.split)
    check_free(folder, inputs, is_own=output is None)
    for note in images.notes:
        LOGGER.info("            %s", note)
    for difference in images.differences:
        LOGGER.warning(
            "the images are not those of the run, so the result is not comparable with its own: %s", difference
        )
    # The images to evaluate take the place of both splits; nothing is trained.
    splits = Splits(classes=classes, train=images.source, val=images.source, test=None, notes=())
    work = Evaluation(inputs=inputs, weights_file=weights.file)
    return Ready(config=config, splits=splits, plan=plan), work, folder
