"""`python -m runner predict run=DIR input=FOLDER output=FILE.csv`: score images with a packaged model."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, CheckpointError, ConfigError, Problem
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls import PredictCall
from runner.run.package import Package, read_package
from runner.tools.predict.inputs import read_inputs
from runner.tools.predict.outputs import columns, format_of
from runner.tools.predict.partial import PartialScores, check_output


def run(argv: list[str]) -> int:
    """Score images.

    Raises:
        ConfigError: a value is wrong or missing.
        CheckpointError: there is no packaged model, or it is damaged or of a newer format.
        InvalidDatasetError: there are no images.
        MissingPackageError: the output is .parquet, and pyarrow is not installed.
        OutputError: the output exists or can't be written, or an unfinished one exists.
        StoppedOnRequest: the scores so far are kept for resume=true.
    """
    with StopRequest() as stop:
        return _predict(argv, stop)


def _predict(argv: list[str], stop: StopRequest) -> int:
    call = read_own("predict", PredictCall, argv)
    output = typed_path(call.output, "output").absolute()
    format_of(output, [])  # refuses an unknown suffix before anything is read
    check_output(output)
    package = _package(call)
    inputs = read_inputs(call.input, call.root, package.card.classes)
    form = format_of(output, columns(package.card.classes, has_labels=inputs.labels is not None))
    owner = {"model": package.card.weights_sha256, "input": inputs.digest(), "precision": call.precision}
    with PartialScores(output, form, owner) as partial:
        partial.begin(resume=call.resume)
        from runner.tools.predict.score import score  # noqa: PLC0415 - torch only after all other checks

        for note in inputs.notes:
            LOGGER.info("            %s", note)
        score(package, inputs, partial, call=call, stop=stop)
    return EXIT_DONE


def _package(call: PredictCall) -> Package:
    if (call.run is None) == (call.model is None):
        given = "not both" if call.run is not None else "none was given"
        message = f"give run=DIR, a run folder, or model=DIR, its folder model/ alone; {given}"
        raise ConfigError([Problem(key="run", message=message)])
    place = typed_path(call.run or call.model or "", "model" if call.run is None else "run").resolve()
    if not place.is_dir():
        raise CheckpointError(f"{place}: there is no such folder")
    return read_package(place)
