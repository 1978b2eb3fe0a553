"""The only module that prints: it shows log messages and the progress line, and writes log files.

Names of classes and files in a message may come from others. So escape sequences in any message are shown as text
(:func:`runner.base.untrusted.printable_lines`), and Rich's markup is off.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from runner.base.errors import RunnerError
from runner.base.files import named_write_errors
from runner.base.reasons import reason_of
from runner.base.safe_text import mask_credentials
from runner.base.untrusted import printable, printable_lines, shorten_middle

LOGGER = logging.getLogger("runner")
# For `extra=`: writes a record to log files only, such as the traceback of an error whose message is on the terminal.
FILE_ONLY = {"is_file_only": True}
Item = TypeVar("Item")
_MAX_KEPT_MESSAGES = 10_000
# `[/]` in a file name would be an error as markup, and `[red]` would vanish.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


def terminal_safe(text: str) -> str:
    """A message whose escape sequences are shown as text, and whose addresses have their credentials masked."""
    return printable_lines(mask_credentials(text))


class _FileFormatter(logging.Formatter):
    """Log files are looked at in a terminal too."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, if it has one."""
        return terminal_safe(super().format(record))


class _MessageConsole(Console):
    """For log messages: a closed pipe (`| head`) silences it, where Rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Send all further output to the null device."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # or what is still to be written would fail at the end
        os.close(nowhere)


class _ResultConsole(Console):
    """For the result of a command: a closed pipe ends the command."""

    def on_broken_pipe(self) -> None:
        """Raise instead of ending the process, as Rich would."""
        raise BrokenPipeError


class ProgressDisplay(Protocol):
    """Where progress is redrawn in place, if that is not the terminal."""

    def show_progress(self, label: str, detail: str, completed: int, total: int) -> None:
        """Draw the progress of a stage, as :meth:`ProgressLine.update` is told it."""

    def clear_progress(self) -> None:
        """Remove it until the next one."""


class ConsoleHandler(logging.Handler):
    """Shows log records above the progress line; warnings and errors go to stderr.

    The progress line may have a display of its own, which a notebook offers.
    """

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, display: ProgressDisplay | None = None
    ) -> None:
        super().__init__(level=logging.INFO)
        # In a notebook Rich would make an output of each message.
        look = {**_PLAIN, "soft_wrap": True, "force_jupyter": False}
        self.out = _MessageConsole(**look, file=out)
        self.err = _MessageConsole(**look, file=err, stderr=err is None)
        self.display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if getattr(record, "is_file_only", False):
            return
        try:
            is_warning = record.levelno >= logging.WARNING
            message = terminal_safe(shorten_middle(record.getMessage()))
            text = Text(f"warning: {message}", style="yellow") if is_warning else Text(message)
            (self.err if is_warning else self.out).print(text)
        except Exception:
            self.handleError(record)


def set_up() -> None:
    """Show the runner's log messages on the terminal; called by the command line, never on import."""
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    if not is_set_up():
        LOGGER.addHandler(ConsoleHandler())


@contextmanager
def messages_and_progress_on(display: ProgressDisplay) -> Iterator[None]:
    """Within the block, show progress on this display, and the runner's log messages as plain text and only once."""
    level, propagates = LOGGER.level, LOGGER.propagate
    with messages_redirected_to(None, None):
        handler = ConsoleHandler(display=display)
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        try:
            yield
        finally:
            LOGGER.removeHandler(handler)
            LOGGER.setLevel(level)
            LOGGER.propagate = propagates


def is_set_up() -> bool:
    """Whether :func:`set_up` was called."""
    return any(isinstance(handler, ConsoleHandler) for handler in LOGGER.handlers)


@contextmanager
def messages_redirected_to(out: TextIO | None, err: TextIO | None) -> Iterator[None]:
    """Within the block, show log messages on these streams instead of the terminal; None: nowhere."""
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
    """A log file whose write errors (such as a full disk) are one warning; they don't end the run."""

    def __init__(self, path: Path) -> None:
        with named_write_errors(path):
            super().__init__(path, encoding="utf-8")
        self.setFormatter(_FileFormatter())
        self._has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn that a message could not be written."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._warn_once(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Flush and close the file."""
        try:
            super().close()
        except OSError as error:
            self._warn_once(error)

    def _warn_once(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True  # first: the warning below comes to this handler too
        message = f"messages are missing in {self.baseFilename}, which can't be written: {reason_of(error)}"
        if is_set_up():
            LOGGER.warning("%s", message)
        elif sys.stderr is not None:
            sys.stderr.write(terminal_safe(f"runner: warning: {message}\n"))


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append the runner's log messages to a file too.

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
def log_buffered() -> Iterator[Callable[[Path], None]]:
    """Buffer the runner's log messages until their file is known.

    Yields:
        A function that writes what was buffered to a file.
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
    """Print the result of a command, such as help, to stdout."""
    if sys.stdout is not None:  # it may be closed
        text = terminal_safe(text)
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()


def show_paged(text: str) -> None:
    """Print text to stdout; on a terminal that it does not fit on, by the user's pager (PAGER) or `less`."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if not is_terminal or text.count("\n") < shutil.get_terminal_size().lines:
        show(text)
        return
    import pydoc  # noqa: PLC0415 - for terminals only

    os.environ.setdefault("LESS", "-FRXK")  # as git does; and Ctrl-C ends it
    with suppress(KeyboardInterrupt):  # Ctrl-C in a pager means: enough
        pydoc.pager(terminal_safe(text) + "\n")


def show_rows(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows of cells to stdout, in columns; the last one is wrapped to the width of the terminal."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for row in rows:
        table.add_row(*(Text(terminal_safe(cell)) for cell in row))
    _ResultConsole(**_PLAIN).print(table)


def show_error(error: RunnerError) -> None:
    """Print a named error to stderr in the form that scripts rely on."""
    sys.stderr.write(terminal_safe(f"runner: {error.name}: {error}\n"))
    sys.stderr.flush()


def show_traceback() -> None:
    """Print the traceback of the exception that is being handled to stderr."""
    sys.stderr.write(terminal_safe(traceback.format_exc()))
    sys.stderr.flush()


def _terminal() -> Console | None:
    for handler in LOGGER.handlers:
        # FORCE_COLOR, which notebooks and CI set, makes Rich take a pipe for a terminal; it asks for colours only.
        if isinstance(handler, ConsoleHandler) and handler.out.is_terminal and handler.out.file.isatty():
            return handler.out
    return None


def _display() -> ProgressDisplay | None:
    return next((handler.display for handler in LOGGER.handlers if isinstance(handler, ConsoleHandler)), None)


class ProgressLine:
    """Progress: one line that is redrawn on a terminal or a display; elsewhere a log message per update."""

    def __init__(self, live: Progress | None, display: ProgressDisplay | None = None) -> None:
        self._live = live
        self._display = display
        self._task: TaskID | None = None

    @property
    def is_live(self) -> bool:
        """Whether updates redraw one line."""
        return self._live is not None or self._display is not None

    def update(self, label: str, detail: str, completed: int, total: int, *, unit: str = "step") -> None:
        """Show the progress of a stage.

        Args:
            label: the stage, such as "epoch 3/5".
            detail: such as the loss.
            completed: steps done.
            total: steps of this stage.
            unit: singular noun for what is counted.
        """
        label, detail = printable(label), printable(detail)
        if self._display is not None:
            self._display.show_progress(label, detail, completed, total)
            return
        if self._live is None:
            LOGGER.info("%s", f"{label}  {unit} {completed}/{total}  {detail}".rstrip())
            return
        if self._task is None:
            self._task = self._live.add_task(label, total=total, detail=detail)
        self._live.update(self._task, description=label, completed=completed, total=total, detail=detail, refresh=True)

    def clear(self) -> None:
        """Remove the line until the next update."""
        if self._display is not None:
            self._display.clear_progress()
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A progress line at the end of the terminal, above which log messages scroll, or on a display of its own."""
    terminal, display = _terminal(), _display()
    if terminal is None or display is not None:
        line = ProgressLine(None, display)
        try:
            yield line
        finally:
            line.clear()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeRemainingColumn(),
    )
    # Prints of libraries scroll above the line too, unless stdout of this process is redirected to its log file.
    is_on_stdout = terminal.file is sys.stdout
    with Progress(
        *columns, console=terminal, transient=True, redirect_stdout=is_on_stdout, redirect_stderr=is_on_stdout
    ) as live:
        yield ProgressLine(live)


def tracked(items: Iterable[Item], *, label: str, unit: str, total: int) -> Iterator[Item]:
    """Yield the items and show how many have been taken."""
    with progress_line() as line:
        step = max(-(-total // (200 if line.is_live else 10)), 1)
        for completed, item in enumerate(items, 1):
            yield item
            if completed % step == 0 or completed == total:
                line.update(label, "", completed, total, unit=unit)


class LiveView:
    """A renderable, such as a table, that is redrawn in place on a terminal; nothing without a terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._live is not None

    def show(self, what: RenderableType) -> None:
        """Draw it in place of what was drawn before."""
        if self._live is not None:
            self._live.update(what, refresh=True)


@contextmanager
def live_view() -> Iterator[LiveView]:
    """A :class:`LiveView` at the end of the terminal, above which log messages scroll."""
    terminal = _terminal()
    if terminal is None:
        yield LiveView(None)
        return
    with Live(console=terminal, transient=True, auto_refresh=False) as live:
        yield LiveView(live)
