"""Follows a run that another process trains, by nothing but its folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from runner.base.untrusted import open_regular, printable
from runner.tools.runs.find import Line, line_of

_LINES_AT_FIRST = 8
_MAX_BYTES_AT_ONCE = 1 << 20


class LogTail:
    """What was added to the log of rank 0 since it was looked at last: whole lines, printable."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "logs" / "rank_0.log"
        self._offset: int | None = None

    def read(self) -> list[str]:
        """The new lines; at first the last few.

        Raises:
            OSError: the log is there but can't be read.
        """
        try:
            with open_regular(self._file) as file:
                size = file.seek(0, os.SEEK_END)
                start = max(size - _MAX_BYTES_AT_ONCE, 0 if self._offset is None else self._offset)
                file.seek(start)
                content = file.read(size - start)
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        lines = [printable(line) for line in whole.decode("utf-8", errors="replace").splitlines()]
        shown = lines[-_LINES_AT_FIRST:] if self._offset is None else lines
        self._offset = start + len(whole)
        return shown


def follow(run_dir: Path, *, every_seconds: float) -> Iterator[str | Line]:
    """Yield what the run logs, line by line, and at its end its line of `runs list`.

    Args:
        run_dir: of a run that is queued, running or over.
        every_seconds: how often the folder is looked at.

    Raises:
        OSError: the log can't be read.
    """
    tail = LogTail(run_dir)
    while True:
        line = line_of(run_dir)  # before the log, so that nothing is missed that was logged before the end
        yield from tail.read()
        if line.status not in ("running", "queued"):
            yield line
            return
        time.sleep(every_seconds)
