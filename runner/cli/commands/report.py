"""`python -m runner report run=DIR [output=FILE]`: one HTML file that explains a run or a sweep."""

from __future__ import annotations

from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE
from runner.base.files import check_new_file, write_atomic
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_trained import ReportCall
from runner.run.run_folder import read_record
from runner.tools.report import REPORT_FILE
from runner.tools.sweep.sweep_folder import SweepFolder, is_sweep


def run(argv: list[str]) -> int:
    """Write the report of a run or a sweep; replaces the one in its folder, but no other file.

    Raises:
        CheckpointError: the folder is no run folder, or a file in it is damaged.
        OutputError: the report can't be written.
    """
    call = read_own("report", ReportCall, argv)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links(run_dir)
    if not is_sweep(run_dir):
        read_record(run_dir)
    output = run_dir / REPORT_FILE
    if call.output is not None:
        output = typed_path(call.output, "output").absolute()
        check_new_file(output)
    _write(run_dir, output)
    LOGGER.info("report      %s (%d kB)", output, output.stat().st_size // 1000)
    return EXIT_DONE


def _write(folder: Path, output: Path) -> None:
    # Drawing is imported only once there is something to draw.
    if is_sweep(folder):
        from runner.tools.report.sweep_page import render_sweep  # noqa: PLC0415

        write_atomic(output, render_sweep(SweepFolder(folder)))
    else:
        from runner.tools.report.write import write_report  # noqa: PLC0415

        write_report(folder, output)
