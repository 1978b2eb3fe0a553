"""Redirects stdout and stderr of a process to its log, C code's output and the stacks of a crash included."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.base.console import messages_redirected_to
from runner.base.files import named_write_errors

_STDOUT, _STDERR = 1, 2


@contextmanager
def redirected_output(log: Path, *, shows_messages: bool) -> Iterator[None]:
    """Append stdout, stderr and the stacks of crashes to a file.

    Args:
        log: the file.
        shows_messages: whether the runner's messages are still shown on the terminal; one of all processes does so.
    """
    with ExitStack() as stack:
        out, err = (stack.enter_context(os.fdopen(os.dup(number), "w")) for number in (_STDOUT, _STDERR))
        stack.enter_context(messages_redirected_to(out, err) if shows_messages else messages_redirected_to(None, None))
        stack.callback(_redirect, {_STDOUT: out.fileno(), _STDERR: err.fileno()})
        with named_write_errors(log), log.open("ab") as file:
            _redirect({_STDOUT: file.fileno(), _STDERR: file.fileno()})
        # Line by line, or the last output of a killed process would be lost.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(_STDERR)
        yield


def _redirect(targets: dict[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # C code's buffered output belongs to the old target
    for number, target in targets.items():
        os.dup2(target, number)
