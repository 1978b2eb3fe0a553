"""Sends all that a process writes to its log: what C code prints and the stacks of a crash included."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.base.console import shown_on
from runner.base.files import named_write_errors

_STDOUT, _STDERR = 1, 2


@contextmanager
def output_to(log: Path, *, shows_messages: bool) -> Iterator[None]:
    """Append stdout, stderr and the stacks of crashes to a file.

    Args:
        log: the file.
        shows_messages: keep showing the runner's messages where they were shown before; of all processes one does.
    """
    with ExitStack() as stack:
        out, err = (stack.enter_context(os.fdopen(os.dup(number), "w")) for number in (_STDOUT, _STDERR))
        stack.enter_context(shown_on(out, err) if shows_messages else shown_on(None, None))
        stack.callback(_redirect, {_STDOUT: out.fileno(), _STDERR: err.fileno()})
        with named_write_errors(log), log.open("ab") as file:
            _redirect({_STDOUT: file.fileno(), _STDERR: file.fileno()})
        # Lines, or what a killed process wrote last would be lost.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(_STDERR)
        yield


def _redirect(targets: dict[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # what C code has printed but not yet written belongs to the old target
    for number, target in targets.items():
        os.dup2(target, number)
