"""What is shown holds names that anybody may have chosen: none of them reaches the terminal as a command."""

from __future__ import annotations

import io
import logging
import os
import pty
import signal
import subprocess
import sys

import pytest
from rich.table import Table

from runner.base import console
from runner.base.console import (
    LOGGER,
    ConsoleHandler,
    log_buffered,
    log_to_file,
    progress_line,
    show,
    show_error,
    show_rows,
)
from runner.base.errors import InvalidDatasetError
from tests.conftest import ROOT

NAMES = ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "[/]", "[red]x", "\u202egnp", ":smile:", "a\rb", "\x9b2J"]
SHOWN = [
    r"\x1b[31mred\x1b[0m",
    r"\x1b]0;title\x07",
    "[/]",
    "[red]x",
    r"\u202egnp",
    ":smile:",
    r"a\x0db",
    r"\x9b2J",
]


PAIRS = list(zip(NAMES, SHOWN, strict=True))


def test_bytes_of_names_that_are_no_utf_8():
    # Not by way of the log: pytest hands what it captures of it from process to process as UTF-8.
    assert console.terminal_safe("class \udcff") == r"class \xff"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the handler writes to a stream that is no terminal."""
    handler = ConsoleHandler(out := io.StringIO(), out)
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    return out


@pytest.mark.parametrize(("name", "text"), PAIRS)
def test_names_in_messages(shown, name, text):
    LOGGER.info("class %s", name)
    LOGGER.warning("class %s\nand more", name)
    assert shown.getvalue() == f"class {text}\nwarning: class {text}\nand more\n"


@pytest.mark.parametrize(("name", "text"), PAIRS)
def test_names_in_answers_and_errors(capsys, name, text):
    show(f"class {name}")
    show_rows([(name, name)])
    show_error(InvalidDatasetError(f"data.train: {name}"))
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"class {text}"
    assert out.splitlines()[1].split() == [*text.split(), *text.split()]
    assert err == f"runner: InvalidDatasetError: data.train: {text}\n"


@pytest.mark.parametrize(("name", "text"), PAIRS)
def test_names_in_log_files(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr(LOGGER, "handlers", [])
    with log_buffered() as write:
        LOGGER.error("class %s", name)
        write(tmp_path / "kept.log")
    with log_to_file(tmp_path / "log"):
        LOGGER.error("class %s", name)
    for file in ("kept.log", "log"):
        assert (tmp_path / file).read_text().endswith(f"ERROR class {text}\n")


@pytest.mark.parametrize("name", NAMES)
def test_names_on_the_line_of_progress_and_in_live_tables(monkeypatch, name):
    monkeypatch.setenv("TERM", "xterm-256color")
    handler = ConsoleHandler(Terminal(), Terminal())
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    with progress_line() as line:
        assert line.is_live
        line.update(name, name, 1, 2)
    with console.live_view() as view:
        table = Table()
        table.add_column("[/]")
        table.add_row("[/]")
        view.show(table)
    written = handler.out.file.getvalue()
    assert "\x1b]0;" not in written
    assert "\u202e" not in written
    assert "[/]" in written


def on_a_terminal(*argv: str, **environment: str) -> tuple[subprocess.Popen[str], int]:
    """The runner on a terminal of 20 lines, and the other end of that terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *argv],
        cwd=ROOT,
        env={**os.environ, "LINES": "20", "TERM": "xterm", "MANPAGER": "", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def test_a_page_that_is_longer_than_the_terminal_goes_to_the_users_pager(tmp_path):
    process, ours = on_a_terminal("--help", "all", PAGER=f"cat > {tmp_path}/paged")
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)
    os.close(ours)
    assert (tmp_path / "paged").read_text().count("\n") > 700


def test_a_shorter_one_does_not_nor_does_one_that_is_piped(tmp_path):
    process, ours = on_a_terminal("help", "seed", PAGER=f"touch {tmp_path}/paged")
    assert "seed=1" in os.read(ours, 4096).decode()
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)
    os.close(ours)
    environment = {**os.environ, "PAGER": f"touch {tmp_path}/paged"}
    command = [sys.executable, "-m", "runner", "--help", "all"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") > 700
    assert not (tmp_path / "paged").exists()


def test_leaving_the_pager_early_is_no_failure():
    process, ours = on_a_terminal("--help", "all", PAGER="head -c 1")
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)
    os.close(ours)
    # A shell would lose a SIGINT that comes between two of its commands.
    program = "import signal as s, time; s.signal(s.SIGINT, s.SIG_DFL); print('here', flush=True); time.sleep(100)"
    process, ours = on_a_terminal("--help", "all", PAGER=f'exec {sys.executable} -c "{program}"')
    assert b"here" in os.read(ours, 4096)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    os.close(ours)


def test_a_pipe_is_no_terminal_even_where_colours_are_forced(monkeypatch):
    # Notebooks and CI set FORCE_COLOR, which processes of a run inherit.
    monkeypatch.setenv("FORCE_COLOR", "1")
    handler = ConsoleHandler(out := io.StringIO(), out)
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    with progress_line() as line:
        assert not line.is_live
        line.update("epoch 1/5", "loss 0.5", 1, 2)
    assert out.getvalue() == "epoch 1/5  step 1/2  loss 0.5\n"


def test_a_display_of_its_own_shows_the_progress_and_messages_come_once(capsys):
    class Display:
        def __init__(self) -> None:
            self.shown: list[object] = []

        def show_progress(self, *values: object) -> None:
            self.shown.append(values)

        def clear_progress(self) -> None:
            self.shown.append("cleared")

    before = (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers))
    display = Display()
    with console.messages_and_progress_on(display):
        with progress_line() as line:
            line.update("epoch 1/5", "loss 0.5", 1, 2)
            LOGGER.info("a message")
        assert display.shown == [("epoch 1/5", "loss 0.5", 1, 2), "cleared"]
    assert capsys.readouterr().out == "a message\n"
    assert (LOGGER.level, LOGGER.propagate, LOGGER.handlers) == before
