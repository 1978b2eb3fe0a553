"""A large value for processes that are about to be started."""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from contextlib import ExitStack
from multiprocessing import reduction
from types import TracebackType
from typing import IO, Generic, Protocol, TypeVar

from runner.base.errors import OutputError
from runner.base.reasons import reason_of

Value = TypeVar("Value")


class _Descriptor(Protocol):
    """multiprocessing's wrapper of a file descriptor on its way to another process."""

    def detach(self) -> int:
        """The descriptor in this process."""


class PickledFile(Generic[Value]):
    """A pickled value in an unnamed temporary file, whose descriptor the processes inherit.

    Python writes the arguments of a new process into a pipe. If they are larger than the pipe, it can't start the next
    process until this one has imported torch and reads them. The file disappears with the last process, and a restarted
    process reads it again.
    """

    def __init__(self, value: Value) -> None:
        """Pickle a value.

        Raises:
            OutputError: the folder of temporary files is full or not writable.
        """
        try:
            with ExitStack() as on_error:
                self._file: IO[bytes] = on_error.enter_context(tempfile.TemporaryFile(prefix="runner-"))
                pickle.dump(value, self._file)
                self._file.flush()
                on_error.pop_all()
        except OSError as error:
            raise temporary_file_error(error) from error

    def __enter__(self) -> PickledFile[Value]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file here; processes that were started keep it open."""
        self._file.close()

    def __getstate__(self) -> object:
        return reduction.DupFd(self._file.fileno())

    def __setstate__(self, descriptor: _Descriptor) -> None:
        self._file = os.fdopen(descriptor.detach(), "rb")

    def read(self) -> Value:
        """A copy of the value."""
        # A map, because all processes share the file's position.
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            value: Value = pickle.loads(content)  # written by the process that started this one
        return value


def temporary_file_error(error: OSError) -> OutputError:
    """The error where temporary files can't be written."""
    return OutputError(
        f"{tempfile.tempdir or 'TMPDIR'}: temporary files can't be written: {reason_of(error)}; free space there, or "
        "name another folder with the environment variable TMPDIR"
    )
