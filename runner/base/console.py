"""The only module that prints. Messages go through logging; this shows them, and the line of progress.

Messages hold names of classes and files, which anybody may have chosen: what a terminal would obey in them is shown
here as text, for all of them (:func:`runner.base.untrusted.printable_lines`), and nothing in them is taken for markup.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from runner.base.errors import RunnerError
from runner.base.files import named_write_errors
from runner.base.safe_text import masked
from runner.base.untrusted import printable, printable_lines, shortened

LOGGER = logging.getLogger("runner")
# For `extra=`: keeps a record out of the terminal, such as a traceback of what is also shown as a message.
FILE_ONLY = {"is_file_only": True}
Item = TypeVar("Item")
_MAX_KEPT_MESSAGES = 10_000
# What looks like markup is part of a name: `[/]` as markup would be an error, and `[red]` would not be seen.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


def shown(text: str) -> str:
    """A message as it is shown: names from elsewhere command no terminal, and addresses hold no password."""
    return printable_lines(masked(text))


class _FileFormatter(logging.Formatter):
    """Lines of a log file, which people will look at in a terminal too."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, if it has one."""
        return shown(super().format(record))


class _Messages(Console):
    """A terminal for messages, which are in the log file as well."""

    def on_broken_pipe(self) -> None:
        """Whoever read them has gone (`| head`): no reason to end a training, as Rich would."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # or what is still to be written would fail at the end
        os.close(nowhere)


class _Answer(Console):
    """A terminal for what was asked for: without a reader there is nothing left to do."""

    def on_broken_pipe(self) -> None:
        """Let the command end."""
        raise BrokenPipeError


class ConsoleHandler(logging.Handler):
    """Shows log records above the line of progress; warnings and errors go to stderr."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        super().__init__(level=logging.INFO)
        self.out = _Messages(**_PLAIN, soft_wrap=True, file=out)
        self.err = _Messages(**_PLAIN, soft_wrap=True, file=err, stderr=err is None)

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if getattr(record, "is_file_only", False):
            return
        try:
            is_warning = record.levelno >= logging.WARNING
            message = shown(shortened(record.getMessage()))
            text = Text(f"warning: {message}", style="yellow") if is_warning else Text(message)
            (self.err if is_warning else self.out).print(text)
        except Exception:
            self.handleError(record)


def set_up() -> None:
    """Show messages of the runner on the terminal; called once by the command line, never on import."""
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    if not is_set_up():
        LOGGER.addHandler(ConsoleHandler())


def is_set_up() -> bool:
    """Whether messages of the runner are shown on the terminal."""
    return any(isinstance(handler, ConsoleHandler) for handler in LOGGER.handlers)


@contextmanager
def shown_on(out: TextIO | None, err: TextIO | None) -> Iterator[None]:
    """Show what is shown on the terminal on other streams for a while, or nowhere; nothing where nothing is shown."""
    handlers = [handler for handler in LOGGER.handlers if isinstance(handler, ConsoleHandler)]
    others = [ConsoleHandler(out, err)] if handlers and out is not None else []
    for handler in handlers:
        LOGGER.removeHandler(handler)
    for handler in others:
        LOGGER.addHandler(handler)
    try:
        yield
    finally:
        for handler in others:
            LOGGER.removeHandler(handler)
        for handler in handlers:
            LOGGER.addHandler(handler)


class _LogFile(logging.FileHandler):
    """A log that says once when it can't be written, and hides no other error: of a full disk others have a name."""

    def __init__(self, path: Path) -> None:
        with named_write_errors(path):
            super().__init__(path, encoding="utf-8")
        self.setFormatter(_FileFormatter())
        self._is_told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell why a message could not be written."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._tell(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file; what could not be written until now is written, or missing."""
        try:
            super().close()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if self._is_told:
            return
        self._is_told = True  # what follows comes here too
        message = f"messages are missing in {self.baseFilename}, which can't be written: {error.strerror or error}"
        if is_set_up():
            LOGGER.warning("%s", message)
        elif sys.stderr is not None:
            sys.stderr.write(shown(f"runner: warning: {message}\n"))


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Keep all messages of the runner in a file as well.

    Raises:
        OutputError: when the file can't be opened.
    """
    handler = _LogFile(path)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        handler.close()


@contextmanager
def log_kept() -> Iterator[Callable[[Path], None]]:
    """Keep all messages of the runner until a file for them is known.

    Yields:
        Writes to this file what was kept.
    """
    handler = MemoryHandler(_MAX_KEPT_MESSAGES, flushLevel=logging.CRITICAL + 1, flushOnClose=False)

    def write(path: Path) -> None:
        file = _LogFile(path)
        handler.setTarget(file)
        handler.flush()
        file.close()

    LOGGER.addHandler(handler)
    try:
        yield write
    finally:
        LOGGER.removeHandler(handler)
        handler.close()


def show(text: str) -> None:
    """Print a text that was asked for, such as help, to stdout."""
    if sys.stdout is not None:  # it may be closed
        text = shown(text)
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()


def show_rows(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows of cells to stdout, in columns; the last one is wrapped to the width of the terminal."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    _Answer(**_PLAIN).print(table)


def show_error(error: RunnerError) -> None:
    """Print a named error to stderr in the form that scripts rely on."""
    sys.stderr.write(shown(f"runner: {error.name}: {error}\n"))
    sys.stderr.flush()


def show_traceback() -> None:
    """Print the exception that is being handled, a defect of ours, to stderr."""
    sys.stderr.write(shown(traceback.format_exc()))
    sys.stderr.flush()


def _terminal() -> Console | None:
    for handler in LOGGER.handlers:
        if isinstance(handler, ConsoleHandler) and handler.out.is_terminal:
            return handler.out
    return None


class ProgressLine:
    """A live line on a terminal; elsewhere one plain line per update."""

    def __init__(self, live: Progress | None) -> None:
        self._live = live
        self._task: TaskID | None = None

    @property
    def is_live(self) -> bool:
        """Whether updates replace each other; else each is a line for good."""
        return self._live is not None

    def update(self, label: str, detail: str, completed: int, total: int, *, unit: str = "step") -> None:
        """Show how far a stage is.

        Args:
            label: the stage, such as "epoch 3/5".
            detail: what is known, such as the loss.
            completed: steps done of this stage.
            total: steps of this stage.
            unit: what is counted, if it isn't steps.
        """
        label, detail = printable(label), printable(detail)
        if self._live is None:
            LOGGER.info("%s", f"{label}  {unit} {completed}/{total}  {detail}".rstrip())
            return
        if self._task is None:
            self._task = self._live.add_task(label, total=total, detail=detail)
        self._live.update(self._task, description=label, completed=completed, total=total, detail=detail, refresh=True)

    def clear(self) -> None:
        """Take the line away until the next update."""
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A line of progress that messages scroll past."""
    terminal = _terminal()
    if terminal is None:
        yield ProgressLine(None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeRemainingColumn(),
    )
    # What others print scrolls past the line too; but in a process whose output goes to its log, it shall go there.
    is_on_stdout = terminal.file is sys.stdout
    with Progress(
        *columns, console=terminal, transient=True, redirect_stdout=is_on_stdout, redirect_stderr=is_on_stdout
    ) as live:
        yield ProgressLine(live)


def tracked(items: Iterable[Item], *, label: str, unit: str, total: int) -> Iterator[Item]:
    """The items, with a line of progress that tells how many of them have come."""
    with progress_line() as line:
        step = max(-(-total // (200 if line.is_live else 10)), 1)
        for completed, item in enumerate(items, 1):
            yield item
            if completed % step == 0 or completed == total:
                line.update(label, "", completed, total, unit=unit)


class LiveView:
    """Something that is drawn anew in its place on a terminal; elsewhere nothing is drawn."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._live is not None

    def show(self, what: RenderableType) -> None:
        """Draw it."""
        if self._live is not None:
            self._live.update(what, refresh=True)


@contextmanager
def live_view() -> Iterator[LiveView]:
    """A place at the end of the terminal that messages scroll past."""
    terminal = _terminal()
    if terminal is None:
        yield LiveView(None)
        return
    with Live(console=terminal, transient=True, auto_refresh=False) as live:
        yield LiveView(live)
