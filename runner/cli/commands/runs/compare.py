"""`python -m runner runs compare output=FILE.html [group=… | runs=[A,B]]`: the curves of many runs in one page."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, ConfigError, Problem
from runner.base.files import check_new_file, write_new
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsCompareCall
from runner.run.run_folder import read_record
from runner.tools.runs.columns import RunColumns
from runner.tools.runs.find import Line, line_of, select_under


def run(argv: list[str]) -> int:
    """Write the page.

    Raises:
        CheckpointError: a folder that was typed is no run folder, or a file of a run is damaged.
        ConfigError: a filter is wrong, or there is no run to draw.
        OutputError: the file exists already or can't be written.
    """
    call = read_own("runs compare", RunsCompareCall, argv)
    output = typed_path(call.output, "output").absolute()
    check_new_file(output)
    root, lines = (None, _typed(call)) if call.runs else select_under(call)
    lines = [line for line in lines if line.status not in ("damaged", "queued")]
    if not lines:
        raise ConfigError([Problem(key="root", value=str(root), has_value=True, message="no such runs under it")])
    columns = RunColumns(lines)
    columns.check("sort", call.sort or "start")
    chosen = (lines if call.runs and call.sort is None else columns.sorted(call.sort))[: call.limit]
    from runner.tools.report.compare_page import render_comparison  # noqa: PLC0415 - draws

    write_new(output, render_comparison(chosen).encode())
    LOGGER.info("comparison  %s (%d of %d runs, %d kB)", output, len(chosen), len(lines), output.stat().st_size // 1000)
    return EXIT_DONE


def _typed(call: RunsCompareCall) -> list[Line]:
    folders = [typed_path(path, "runs").resolve() for path in call.runs]
    for folder in folders:
        refuse_outside_links(folder)
        read_record(folder)
    return [line_of(folder) for folder in folders]
