"""`python -m runner report run=DIR [output=FILE]`: one HTML file that explains a run."""

from __future__ import annotations

from pathlib import Path

from runner.commands.call import read_own
from runner.console import LOGGER
from runner.errors import EXIT_DONE
from runner.files import check_new_file
from runner.report import REPORT_FILE
from runner.run_folder import read_record
from runner.schema.calls import ReportCall


def run(argv: list[str]) -> int:
    """Write the report of a run; the one in the run folder is replaced, another file never.

    Raises:
        CheckpointError: when the folder is no run folder, or a file of it is damaged.
        OutputError: when the report can't be written.
    """
    call = read_own("report", ReportCall, argv)
    run_dir = Path(call.run).expanduser().resolve()
    read_record(run_dir)
    output = run_dir / REPORT_FILE
    if call.output is not None:
        output = Path(call.output).expanduser().absolute()
        check_new_file(output)
    # Drawing is imported only once there is something to draw.
    from runner.report.write import write_report  # noqa: PLC0415

    write_report(run_dir, output)
    LOGGER.info("report      %s (%d kB)", output, output.stat().st_size // 1000)
    return EXIT_DONE
