"""`python -m runner drift model=DIR input=FOLDER`: how far images have drifted from those of the validation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from runner.base.console import LOGGER, show
from runner.base.errors import EXIT_DONE, DriftError
from runner.base.stop import StopRequest
from runner.cli.call import read_own
from runner.config.schema.calls import DriftCall
from runner.run.package import read_package
from runner.tools.drift.drift_measures import DriftReport
from runner.tools.predict.inputs import read_inputs
from runner.tools.registry.resolve import folder_of
from runner.tools.runs.find import as_table

_HEAD = ("feature", "PSI", "by chance", "test", "statistic", "p-value", "drifted")


def run(argv: list[str]) -> int:
    """Score images as `predict` does, and compare their features with the reference of the package; writes nothing.

    Raises:
        ConfigError: a value is wrong or missing.
        CheckpointError: there is no packaged model, it is damaged, or has no reference.
        RegistryError: the registry has no such version, or its files are not those that were registered.
        InvalidDatasetError: there are no images, or none of them can be read.
        DriftError: a feature has drifted, with fail_on_drift=true.
        StoppedOnRequest: nothing is kept.
    """
    with StopRequest() as stop:
        call = read_own("drift", DriftCall, argv)
        with _only_warnings() if call.format == "json" else nullcontext():
            report = _report(call, stop)
    if call.format == "json":
        show(json.dumps(report.to_json(), indent=2))
    else:
        _show_table(report)
    if call.fail_on_drift and report.drifted:
        raise DriftError(f"drifted from the reference: {', '.join(report.drifted)}")
    return EXIT_DONE


@contextmanager
def _only_warnings() -> Iterator[None]:
    """Keep messages out of the JSON on stdout; warnings go to stderr."""
    level = LOGGER.level
    LOGGER.setLevel(logging.WARNING)
    try:
        yield
    finally:
        LOGGER.setLevel(level)


def _report(call: DriftCall, stop: StopRequest) -> DriftReport:
    package = read_package(folder_of(call.run, call.model, call.registry.uri))
    package.reference  # noqa: B018 - refuses a package without one before the images are listed
    inputs = read_inputs(call.input, call.root, package.card.classes)
    for note in inputs.notes:
        LOGGER.info("            %s", note)
    from runner.tools.drift.score_drift import drift_of  # noqa: PLC0415 - torch only after all other checks

    return drift_of(package, inputs, call=call, stop=stop)


def _show_table(report: DriftReport) -> None:
    rows = [
        [
            one.feature,
            f"{one.psi:.3f}",
            f"{one.psi_by_chance:.3f}",
            one.test,
            f"{one.statistic:.4g}",
            f"{one.p_value:.2g}",
            "yes" if one.has_drifted else "no",
        ]
        for one in report.features
    ]
    show(as_table(_HEAD, rows))
    show(f"{report.num_images:,} images, compared with {report.num_reference:,} of the validation")
    drifted = ", ".join(report.drifted)
    show(f"drifted: {drifted}" if drifted else f"no feature has drifted by {report.threshold:g} or more")
    if report.least_images is None:
        show("the validation has too few images for this threshold: a drift may go unnoticed")
    elif report.has_few_images:
        show(f"too few images to be sure: at least {report.least_images:,} are needed for this threshold")
