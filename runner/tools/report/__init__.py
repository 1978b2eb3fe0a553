"""Reports of runs and sweeps: one self-contained HTML file each.

Importing this package imports neither torch nor what draws and fills templates.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.console import LOGGER

if TYPE_CHECKING:
    from runner.data.splits import Splits

REPORT_FILE = "report.html"


def explain_end(run_dir: Path, splits: Splits) -> None:
    """Write the report of a run that has just ended, or log a warning where that fails.

    It is pickled by its name, so it must stay a function of this module.
    """
    _explain(run_dir, splits)


def _explain(run_dir: Path, splits: Splits) -> None:
    try:
        from runner.tools.report.write import write_report  # noqa: PLC0415

        write_report(run_dir, run_dir / REPORT_FILE, splits)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        LOGGER.warning("the report can't be written: %s; python -m runner report run=%s tries again", reason, run_dir)
    else:
        LOGGER.info("report      %s", run_dir / REPORT_FILE)
