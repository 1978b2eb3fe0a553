"""Fills the templates: from a run folder to the HTML of its report."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from runner.base.files import write_atomic
from runner.data.splits import Splits
from runner.tools.report.charts import confusions, training_curves
from runner.tools.report.facts import environment, flat, summary, time_split, warnings_of
from runner.tools.report.gallery import gallery
from runner.tools.runs.past import PastRun, describe_seconds, has_top5, read_run


def write_report(run_dir: Path, output: Path, splits: Splits | None = None) -> None:
    """Write the report of a run, replacing an older file.

    Args:
        run_dir: the full path of the run folder, of whatever status.
        output: the HTML file.
        splits: its data set, if it is open already; else it is opened, for the images.

    Raises:
        CheckpointError: the folder is no run folder, or a file of it is damaged.
        OutputError: the report can't be written.
    """
    write_atomic(output, render(read_run(run_dir), splits))


def render(run: PastRun, splits: Splits | None = None) -> str:
    """The page of a run as HTML."""
    return fill_template(
        "run.html",
        run=run,
        summary=summary(run),
        curves=training_curves(run.rows, has_top5=has_top5(run)),
        time_split=time_split(run),
        evaluation=run.evaluation,
        confusions=confusions(run.evaluation),
        gallery=gallery(run, splits),
        warnings=warnings_of(run),
        config=flat(run.config),
        environment=environment(run),
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def fill_template(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """A page, from a template in `templates/`; all that comes from data, config or machine is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runner.tools.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": lambda share: f"{share:.2%}", "duration": describe_seconds}
    return environment.get_template(template).render(version=importlib.metadata.version("runner"), **values)
