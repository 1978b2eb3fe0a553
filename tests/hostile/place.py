"""The place that an input is tried in, what lies there, and the odd values that inputs are made of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SECRET = "CANARY-5e1f"
"""The value of a variable of the environment and of a file, which must never be shown or written."""
_BAIT = {"secret.txt": f"{SECRET}\n", "victim/keep.txt": "keep\n", "victim/0001-00000001/keep.txt": "keep\n"}


@dataclass(frozen=True)
class Place:
    """A folder of an input's own: `inside`, where it is tried, and `outside`, where nothing may change."""

    base: Path
    templates: Path

    @property
    def inside(self) -> Path:
        """The working folder."""
        return self.base / "inside"

    @property
    def outside(self) -> Path:
        """The bait."""
        return self.base / "outside"

    @property
    def writable(self) -> tuple[Path, ...]:
        """Where the input may write."""
        return self.inside, self.base / "cache", self.base / "tmp"

    def make(self) -> None:
        """Make the folders."""
        for folder in (*self.writable, self.base / "home"):
            folder.mkdir(parents=True)
        for name, content in _BAIT.items():
            (self.outside / name).parent.mkdir(parents=True, exist_ok=True)
            (self.outside / name).write_text(content)

    def changed_outside(self) -> str | None:
        """What is no longer as it was made; None where nothing changed."""
        found = {
            str(path.relative_to(self.outside)): path.read_text(errors="replace")
            for path in sorted(self.outside.rglob("*"))
            if path.is_symlink() or path.is_file()
        }
        if found == _BAIT:
            return None
        return ", ".join(sorted(name for name in {*found, *_BAIT} if found.get(name) != _BAIT.get(name)))

    def filled(self, text: str) -> str:
        """A text with the full paths of this place."""
        places = {"@OUT@": self.outside, "@IN@": self.inside, "@TEMPLATES@": self.templates}
        for word, folder in places.items():
            text = text.replace(word, str(folder))
        return text

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, replacing whatever has this name."""
        path = self.inside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.remove(name)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(self.filled(content), encoding="utf-8", errors="surrogatepass")
        return path

    def link(self, name: str, target: str) -> None:
        """Put a link in place of whatever has this name."""
        self.remove(name)
        (self.inside / name).parent.mkdir(parents=True, exist_ok=True)
        (self.inside / name).symlink_to(self.filled(target))

    def pipe(self, name: str) -> None:
        """Put a FIFO in place of whatever has this name."""
        self.remove(name)
        os.mkfifo(self.inside / name)

    def remove(self, name: str) -> None:
        """Remove what has this name."""
        path = self.inside / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def copy(self, template: str, name: str | None = None) -> Path:
        """Copy what was prepared."""
        path = self.inside / (name or template)
        shutil.copytree(self.templates / template, path, symlinks=True)
        return path


Prepare = Callable[[Place], None]


@dataclass(frozen=True)
class Input:
    """What is tried: a command line, or a function of the library, and what lies in the working folder."""

    title: str
    argv: tuple[str, ...]
    """A command line; `load_model` and `load_config` call those functions with the rest."""
    prepare: Prepare = lambda _: None
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = 60
    """After so many it is a hang; a third of it may be spent computing."""


def put(name: str, content: bytes | Callable[[Place], bytes]) -> Prepare:
    """Write a file."""

    def prepare(place: Place) -> None:
        place.write(name, content if isinstance(content, bytes) else content(place))

    return prepare


def linked(name: str, target: str) -> Prepare:
    """Put a link in place of whatever has this name."""
    return lambda place: place.link(name, target)


def both(*edits: Prepare) -> Prepare:
    """One after the other."""

    def prepare(place: Place) -> None:
        for edit in edits:
            edit(place)

    return prepare


def quietly(write: Callable[[], object]) -> None:
    """Some names can't be put into some archives or file systems."""
    try:
        write()
    except (ValueError, UnicodeError, OSError):
        return
