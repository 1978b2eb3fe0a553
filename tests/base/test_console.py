"""What is shown holds names that anybody may have chosen: none of them reaches the terminal as a command."""

from __future__ import annotations

import io
import logging

import pytest
from rich.table import Table

from runner.base import console
from runner.base.console import (
    LOGGER,
    ConsoleHandler,
    log_kept,
    log_to_file,
    progress_line,
    show,
    show_error,
    show_rows,
)
from runner.base.errors import InvalidDatasetError

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
    assert console.shown("class \udcff") == r"class \xff"


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
    with log_kept() as write:
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
