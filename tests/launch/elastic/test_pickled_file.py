"""A value that reaches processes by a file without a name."""

from __future__ import annotations

import errno
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from runner.base.errors import OutputError
from runner.launch.elastic.pickled_file import PickledFile

VALUE = {"labels": list(range(50_000)), "folder": Path("photos")}


def tell(handed: PickledFile[object], answers: Connection) -> None:
    answers.send(handed.read() == VALUE)


def test_processes_that_start_now_and_later_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    context = multiprocessing.get_context("spawn")
    with PickledFile[object](VALUE) as handed:
        assert list(tmp_path.iterdir()) == [], "nothing is left, however all of them end"
        for _ in range(2):  # as when they are started again
            answers, told = context.Pipe(duplex=False)
            started = [context.Process(target=tell, args=(handed, told)) for _ in range(2)]
            for process in started:
                process.start()
            told.close()
            assert [answers.recv() for _ in started] == [True, True]
            for process in started:
                process.join()
            answers.close()
        assert handed.read() == VALUE


def test_a_full_folder_of_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("runner.launch.elastic.pickled_file.pickle.dump", full)
    place = tempfile.gettempdir()
    with pytest.raises(OutputError, match=rf"{place}: .* the disk is full; .* variable TMPDIR"):
        PickledFile(VALUE)
