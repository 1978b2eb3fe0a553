"""Says in the runner's words why a library or the operating system has failed. Imports nothing of the runner."""

from __future__ import annotations

import errno
import os
import re
import socket

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REASONS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "this is a folder, not a file",
    errno.EACCES: "this user may not (see its permissions with ls -l)",
    errno.EPERM: "the system does not allow it to this user",
    errno.EROFS: "its file system is mounted for reading only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EFBIG: "the file would be larger than its file system or a limit (ulimit -f) allows",
    errno.EIO: "the disk or the network drive reports an error",
    errno.ESTALE: "the network drive has lost it (stale file handle)",
    errno.ELOOP: "its links lead in a circle",
    errno.ENAMETOOLONG: "this path is too long for its file system",
    errno.EMFILE: "this process has too many open files (ulimit -n)",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "there is too little memory",
    errno.EXDEV: "it lies on another file system",
    errno.EADDRINUSE: "another process uses this port",
    errno.EADDRNOTAVAIL: "this machine does not have this address",
    errno.ECONNREFUSED: "nothing listens there",
    errno.ECONNRESET: "the other side closed the connection",
    errno.EHOSTUNREACH: "no network leads to this host",
    errno.ENETUNREACH: "no network leads there",
    errno.ETIMEDOUT: "it did not answer in time",
}


def reason_of(error: BaseException) -> str:
    """Why something failed, to end a sentence with: without `[Errno 2]`, and without the path, which the caller names.

    Args:
        error: an OSError, also as another library has wrapped it (`URLError.reason`); of other errors their message.
    """
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        return reason_of(inner)
    if isinstance(error, socket.gaierror):
        return "this host name is not known here; is there a connection to the network?"
    if isinstance(error, OSError) and error.strerror:
        if error.errno is None or error.strerror != os.strerror(error.errno):
            return error.strerror  # the runner's own
        return _REASONS.get(error.errno, error.strerror[:1].lower() + error.strerror[1:])
    # safetensors, which is written in Rust: "I/O error: No space left on device (os error 28)".
    number = re.search(r"\(os error (\d+)\)", str(error))
    return _REASONS.get(int(number[1]), str(error)) if number else str(error)


def first_line(error: BaseException, most: int = 300) -> str:
    """What a library said, short enough for parentheses at the end of a sentence of ours."""
    lines = (_COLOURS.sub("", line).strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__).rstrip(".")
    return text if len(text) <= most else f"{text[: most - 1]}…"
