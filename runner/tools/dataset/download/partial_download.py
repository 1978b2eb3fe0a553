"""A partial download on disk: the bytes so far, and the response headers by which it can be resumed."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.base.errors import OutputError
from runner.base.files import named_write_errors, write_json
from runner.base.untrusted import UntrustedFileError, read_json


@dataclass(frozen=True, kw_only=True)
class DownloadState:
    """What the response headers say about the file."""

    validator: str | None
    """A strong ETag or Last-Modified; None: the download can't be resumed."""
    total: int | None
    """Its size in bytes."""
    content_type: str | None


class PartialDownload:
    """A hidden folder with the file, its state and a lock."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.file = folder / "archive"
        self.lock = folder / "lock"
        self._folder = folder
        self._state_file = folder / "state.json"
        # Hashed: an address may contain a signature.
        self._identity = hashlib.sha256(identity.encode()).hexdigest()
        self.state: DownloadState | None = None

    @classmethod
    def beside(cls, output: Path, identity: str) -> PartialDownload:
        """The partial download of an output folder.

        Args:
            output: full path.
            identity: equal in all calls that may resume it.

        Raises:
            OutputError: a link or another kind of file has its name.
        """
        folder = output.with_name(f".{output.name}.download")
        for place in (folder, *(folder / name for name in ("archive", "lock", "state.json"))):
            with named_write_errors(place):  # such as a name that is too long
                is_odd = place.exists() and not (place.is_dir() if place == folder else place.is_file())
            if place.is_symlink() or is_odd:
                raise OutputError(f"{place} is a link or no regular file, but a download needs this name; remove it")
        return cls(folder, identity)

    def load(self) -> None:
        """Read the state; the caller holds the lock."""
        self.state = self._read()

    def num_bytes(self) -> int:
        """Size of the file so far."""
        return self.file.stat().st_size if self.state is not None and self.file.exists() else 0

    def is_complete(self) -> bool:
        """Whether the file has the size that the server said."""
        return self.state is not None and self.state.total is not None and self.num_bytes() == self.state.total > 0

    def is_empty(self) -> bool:
        """Whether nothing can be resumed."""
        return self.num_bytes() == 0 or not (self.is_complete() or (self.state and self.state.validator))

    def begin(self, state: DownloadState) -> None:
        """Start with an empty file.

        Raises:
            OutputError: it can't be written.
        """
        with named_write_errors(self.file):
            # Before the state is written: after a kill in between, old bytes would count as part of the new file.
            self.file.write_bytes(b"")
        self._write(state)

    def complete(self) -> None:
        """Save the size of a complete file whose size the server had not said.

        Raises:
            OutputError: it can't be written.
        """
        assert self.state is not None, "a response came before"
        self._write(replace(self.state, total=self.num_bytes()))

    def clear(self) -> None:
        """Delete the file and its state."""
        with named_write_errors(self.file):
            self._state_file.unlink(missing_ok=True)
            self.file.unlink(missing_ok=True)
        self.state = None

    def remove(self) -> None:
        """Delete the folder; what can't be deleted is resumed or overwritten by the next call."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, state: DownloadState) -> None:
        write_json(self._state_file, {"identity": self._identity, **asdict(state)})
        self.state = state

    def _read(self) -> DownloadState | None:
        try:
            saved = read_json(self._state_file)
        except (OSError, UntrustedFileError):
            return None
        if not isinstance(saved, dict) or saved.get("identity") != self._identity:
            return None
        validator, total, content_type = (saved.get(key) for key in ("validator", "total", "content_type"))
        # The validator is sent as a header: a line break in it would inject another.
        is_line = validator is None or (isinstance(validator, str) and validator.isprintable())
        is_size = total is None or (type(total) is int and total >= 0)
        is_sound = is_line and is_size and isinstance(content_type, str | None)
        return DownloadState(validator=validator, total=total, content_type=content_type) if is_sound else None
