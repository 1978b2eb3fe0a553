"""Why the system or a library has failed, without its notation."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from urllib.error import URLError

import pytest

from runner.base.errors import OutputError
from runner.base.files import named_write_errors
from runner.base.reasons import first_line, reason_of
from runner.base.untrusted import UntrustedFileError, read_bytes, unreadable


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "this user may not"),
        (errno.EADDRINUSE, "another process uses this port"),
        (errno.EROFS, "reading only"),
        (errno.ECHILD, "no child processes"),  # of no table: as the system says it
    ],
)
def test_the_system_is_quoted_without_numbers_and_paths(number: int, said: str) -> None:
    reason = reason_of(OSError(number, os.strerror(number), "/some/file"))
    assert said in reason
    assert "[Errno" not in reason
    assert "/some/file" not in reason


def test_what_a_library_has_wrapped_is_found() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert reason_of(URLError(unknown)).startswith("this host name is not known here")


def test_a_full_disk_is_named_with_what_was_written(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"x\.bin can't be written: the disk is full; free space"),
        named_write_errors(tmp_path / "x.bin"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_path_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(UntrustedFileError) as caught:
        read_bytes(tmp_path)
    assert unreadable(tmp_path, caught.value) == f"{tmp_path} is a folder, no regular file"
    missing = tmp_path / "none"
    with pytest.raises(FileNotFoundError) as absent:
        read_bytes(missing)
    assert unreadable(missing, absent.value) == f"{missing} can't be read: there is no such file or folder"


def test_the_first_line_of_a_long_message() -> None:
    assert first_line(RuntimeError("\n  one.\ntwo")) == "one"
    assert first_line(RuntimeError("\x1b[96mone\x1b[0m, as torch colours it")) == "one, as torch colours it"
    assert len(first_line(RuntimeError("x" * 5000))) == 300
    assert first_line(RuntimeError()) == "RuntimeError"
