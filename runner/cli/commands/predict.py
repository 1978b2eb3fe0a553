"""`python -m runner predict run=DIR input=FOLDER output=FILE.csv`: score images with a packaged model."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_trained import PredictCall
from runner.run.package import read_package
from runner.tools.predict.inputs import read_inputs
from runner.tools.predict.outputs import columns, format_of
from runner.tools.predict.partial import PartialScores, check_output
from runner.tools.registry.resolve import folder_of


def run(argv: list[str]) -> int:
    """Score images.

    Raises:
        ConfigError: a value is wrong or missing.
        CheckpointError: there is no packaged model, or it is damaged or of a newer format.
        RegistryError: the registry has no such version, or its files are not those that were registered.
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
    package = read_package(folder_of(call.run, call.model, call.registry.uri))
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
