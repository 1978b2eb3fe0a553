"""The unfinished file of scores, beside the output; it becomes the output once it is complete."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from runner.base.errors import OutputError
from runner.base.files import lock_file, named_write_errors, sync_folder, write_json
from runner.base.reasons import reason_of
from runner.tools.predict.outputs import Format, Scored


def partial_of(output: Path) -> Path:
    """The unfinished file of an output."""
    return output.with_name(f"{output.name}.partial")


def check_output(output: Path) -> None:
    """Check the output path.

    Raises:
        OutputError: the output exists, or its folder is missing.
    """
    if output.exists() or output.is_symlink():
        raise OutputError(f"output = {output}: exists, and is not overwritten; choose another, or remove it")
    if not output.parent.is_dir():
        raise OutputError(f"output = {output}: there is no folder {output.parent}; make it first")


class PartialScores:
    """OUTPUT.partial with the rows so far, and OUTPUT.partial.json with what they depend on.

    Appended rows survive a kill; a row that is cut off is removed on resume. Without any rows both files are removed.
    """

    def __init__(self, output: Path, form: Format, owner: Mapping[str, Any]) -> None:
        """Touch no file yet; see :meth:`begin`.

        Args:
            output: the final file.
            form: how rows are encoded.
            owner: what the rows depend on, such as digests of model and input.
        """
        self.output = output
        self.path = partial_of(output)
        self.description = self.path.with_name(f"{self.path.name}.json")
        self.num_rows = 0
        self._form = form
        self._owner = dict(owner)
        self._file: IO[bytes] | None = None

    def begin(self, *, resume: bool) -> None:
        """Create the unfinished file, or with `resume` open that of an earlier call.

        Raises:
            OutputError: the output exists, its folder is missing or read-only, another process is writing it, or there
                is an unfinished file but no `resume`, or one of another call.
        """
        check_output(self.output)
        if self.path.exists() and not resume:
            raise OutputError(
                f"{self.path} is left of an earlier call that did not end; resume it with resume=true, or remove it"
            )
        is_new = not self.path.exists()
        if not is_new:
            self._check_owner()
        with named_write_errors(self.path):
            self._file = self.path.open("xb" if is_new else "r+b")
            try:
                lock_file(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path)
            except BlockingIOError:
                self._file.close()
                raise OutputError(f"{self.path}: another process is writing it") from None
            self.num_rows, end = (0, 0) if is_new else self._form.complete_rows(self.path)
            if self.num_rows == 0:
                write_json(self.description, self._owner)
            self._file.truncate(end if self.num_rows else 0)
            self._file.seek(0, os.SEEK_END)
            if self.num_rows == 0:
                self._file.write(self._form.head())
            self._file.flush()

    def append(self, scored: Scored) -> None:
        """Append rows.

        Raises:
            OutputError: they can't be written.
        """
        assert self._file is not None, "begun"
        with named_write_errors(self.path):
            self._file.write(self._form.encode(scored))
            self._file.flush()
        self.num_rows += len(scored.names)

    def finish(self) -> None:
        """Turn the unfinished file into the output, synced to disk.

        Raises:
            OutputError: it can't be written, or was created meanwhile.
        """
        assert self._file is not None, "begun"
        with named_write_errors(self.output):
            os.fsync(self._file.fileno())
            check_output(self.output)
            self._form.finish(self.path, self.output)
            self._file.close()
            self.description.unlink()
            sync_folder(self.output.parent)

    def __enter__(self) -> PartialScores:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None or self._file.closed:
            return
        if self.num_rows == 0:
            self.path.unlink(missing_ok=True)
            self.description.unlink(missing_ok=True)
        self._file.close()

    def _check_owner(self) -> None:
        try:
            owner = json.loads(self.description.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{self.path} can't be resumed, as {self.description} can't be read: {reason_of(error)}; remove both"
            ) from error
        known = owner if isinstance(owner, dict) else {}
        different = [name for name, value in self._owner.items() if known.get(name) != value]
        if different:
            raise OutputError(
                f"{self.path} is of another call (other {', '.join(different)}), so it is not resumed; repeat "
                "that call, remove the file, or choose another output"
            )
