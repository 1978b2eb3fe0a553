"""From a run folder to the HTML of its report."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from runner.base.files import write_atomic
from runner.data.splits import Splits
from runner.tools.report.confusion import confusions
from runner.tools.report.curves import curves
from runner.tools.report.facts import environment, flat, has_top5, summary, time_split, warnings_of
from runner.tools.report.gallery import gallery
from runner.tools.runs.past import PastRun, describe_seconds, read_run


def write_report(run_dir: Path, output: Path, splits: Splits | None = None) -> None:
    """Write the report of a run; an older file is replaced.

    Args:
        run_dir: the run folder, full path; the run may be going on, or have failed.
        output: the HTML file.
        splits: its data set where it is open already; else it is opened to show images.

    Raises:
        CheckpointError: when the folder is no run folder, or a file of it is damaged.
        OutputError: when the report can't be written.
    """
    write_atomic(output, render(read_run(run_dir), splits))


def render(run: PastRun, splits: Splits | None = None) -> str:
    """The page as HTML. Everything that comes from data, config or machine is escaped."""
    environment_ = jinja2.Environment(
        loader=jinja2.PackageLoader("runner.tools.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment_.filters |= {"percent": _percent, "duration": describe_seconds, "number": _number}
    return environment_.get_template("run.html").render(
        run=run,
        summary=summary(run),
        curves=curves(run.rows, has_top5=has_top5(run)),
        time_split=time_split(run),
        evaluation=run.evaluation,
        confusions=confusions(run.evaluation),
        gallery=gallery(run, splits),
        warnings=warnings_of(run),
        config=flat(run.config),
        environment=environment(run),
        version=importlib.metadata.version("runner"),
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
