"""Hands something large to processes that are about to be started."""

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

Value = TypeVar("Value")


class _Descriptor(Protocol):
    """Of an open file, on its way to another process."""

    def detach(self) -> int:
        """Its number here."""


class Handed(Generic[Value]):
    """A value in a file without a name, which the processes inherit open and read by themselves.

    Python writes what a process is started with into a pipe. What does not fit there would keep it from starting the
    next process until this one has imported torch and reads on. The file is gone with the last process, however that
    ends; a process that is started again finds it as it was.
    """

    def __init__(self, value: Value) -> None:
        """Write it down, pickled.

        Raises:
            OutputError: the folder of temporary files is full, or the like.
        """
        try:
            with ExitStack() as on_error:
                self._file: IO[bytes] = on_error.enter_context(tempfile.TemporaryFile(prefix="runner-"))
                pickle.dump(value, self._file)
                self._file.flush()
                on_error.pop_all()
        except OSError as error:
            raise no_room_for_temporary(error) from error

    def __enter__(self) -> Handed[Value]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it; processes that have begun still have it."""
        self._file.close()

    def __getstate__(self) -> object:
        return reduction.DupFd(self._file.fileno())

    def __setstate__(self, descriptor: _Descriptor) -> None:
        self._file = os.fdopen(descriptor.detach(), "rb")

    def read(self) -> Value:
        """The value, as a copy of one's own."""
        # All processes share the position in the file; a map has none.
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            value: Value = pickle.loads(content)  # written by whoever has started this process
        return value


def no_room_for_temporary(error: OSError) -> OutputError:
    """What to say where the folder of temporary files can't be used."""
    return OutputError(
        f"{tempfile.tempdir or 'TMPDIR'}: temporary files can't be written: {error.strerror}; free space there, or "
        "name another folder with the environment variable TMPDIR"
    )
