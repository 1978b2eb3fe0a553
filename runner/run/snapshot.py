"""The snapshot of a run's code: what git would commit, as one archive that is the same bytes for the same files.

It is written by whoever trains, and read from whoever sends a run: reading it makes files and runs nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.untrusted import UntrustedFileError, open_regular, printable, read_bytes, unreadable
from runner.base.user_paths import refuse_outside_links
from runner.config.schema import Config
from runner.run.provenance import Committable, files_to_commit, is_plain_name

FILE_NAME = "source.tar.gz"
MOST_BYTES = 100 << 20
"""Of all files of a snapshot together; code and configs have a few."""
MOST_FILES = 20_000
_TOP = "source"
_MOMENT = 315_619_200  # in 1980: the earliest year that every kind of archive can hold
_HEADERS_PER_FILE = 4096  # bytes; more than those of the longest name
_SHOWN = 5


@dataclass(frozen=True)
class SourceFile:
    """A file or a link of a snapshot."""

    content: bytes
    """Of a link, its target."""
    is_link: bool = False
    is_executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The archive and what run.json says about it."""

    archive: bytes
    facts: dict[str, Any]


def folders_of_runs(config: Config) -> list[Path]:
    """The folders in which run folders are made, whose files are no code, whether git ignores them or not."""
    folders = [Path(text).resolve() for text in (config.output_dir, config.sweep.dir) if text is not None]
    # With output_dir=. the code itself lies there.
    return [folder for folder in folders if not Path.cwd().is_relative_to(folder)]


def check_snapshot(folder: Path, *, without: Iterable[Path] = ()) -> Committable:
    """Check that a snapshot can be taken of the repository around a folder.

    Args:
        folder: any folder in the repository.
        without: folders whose untracked files don't belong to the code, such as those of runs.

    Raises:
        ConfigError: there is no repository, or what git would commit is too large.
    """
    found = files_to_commit(folder, without=without)
    if found is None:
        raise _refused(f"{folder} is in no git repository that names it", "start in one: git init is enough")
    sizes = {name: (found.top / name).lstat().st_size for name in (*found.tracked, *found.untracked)}
    if sum(sizes.values()) > MOST_BYTES or len(sizes) > MOST_FILES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
        shown = ", ".join(f"{printable(name)} ({sizes[name] / (1 << 20):.1f} MiB)" for name in largest)
        raise _refused(
            f"git would commit {len(sizes):,} files of {sum(sizes.values()) / (1 << 20):,.1f} MiB, and a snapshot has "
            f"at most {MOST_FILES:,} of {MOST_BYTES >> 20} MiB; the largest: {shown}",
            "let .gitignore or .git/info/exclude name what is no code",
        )
    return found


def take_snapshot(folder: Path, *, without: Iterable[Path] = ()) -> Snapshot:
    """The snapshot of the repository around a folder; arguments and errors are those of :func:`check_snapshot`."""
    found = check_snapshot(folder, without=without)
    files = {}
    for name in sorted((*found.tracked, *found.untracked)):
        try:
            files[name] = _read_source(found.top / name)
        except (OSError, UntrustedFileError):  # it was deleted or replaced just now
            continue
    archive = pack(files)
    within = folder.resolve().relative_to(found.top).as_posix()
    facts = {
        "file": FILE_NAME,
        "sha256": hashlib.sha256(archive).hexdigest(),
        "num_files": len(files),
        "folder": within,
        "left_out": list(found.left_out),
    }
    return Snapshot(archive=archive, facts=facts)


def _refused(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(key="run.snapshot", value=True, has_value=True, message=message, hint=hint)])


def _read_source(path: Path) -> SourceFile:
    if path.is_symlink():
        return SourceFile(os.fsencode(path.readlink()), is_link=True)
    with open_regular(path) as file:
        is_executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
        return SourceFile(file.read(MOST_BYTES), is_executable=is_executable)


def pack(files: Mapping[str, SourceFile]) -> bytes:
    """The archive of these files: in order of their names, without times, owners and other permissions."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, file in sorted(files.items()):
            member = tarfile.TarInfo(f"{_TOP}/{name}")
            member.mtime = _MOMENT
            member.mode = 0o755 if file.is_executable else 0o644
            if file.is_link:
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(file.content)
                archive.addfile(member)
            else:
                member.size = len(file.content)
                archive.addfile(member, io.BytesIO(file.content))
    return packed.getvalue()


def read_snapshot(run_dir: Path, record: Mapping[str, Any]) -> dict[str, SourceFile] | None:
    """The files of a run's snapshot by their paths; None where the run has taken none.

    Args:
        run_dir: the run folder, without links out of it.
        record: its run.json.

    Raises:
        CheckpointError: the archive is missing, is not the one that run.json names, or holds what no snapshot has.
    """
    facts = record.get("snapshot")
    if facts is None:
        return None
    file = run_dir / FILE_NAME
    try:
        archive = read_bytes(file, max_bytes=MOST_BYTES + (1 << 20))
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    if hashlib.sha256(archive).hexdigest() != facts["sha256"]:
        raise CheckpointError(f"{file} is damaged: its SHA-256 is not the one in run.json")
    return unpack(archive, str(file))


def unpack(archive: bytes, name: str) -> dict[str, SourceFile]:
    """The files in an archive, none of which leads out of a folder; nothing is written.

    Args:
        archive: what :func:`pack` makes, or anything else.
        name: of the archive, for messages.

    Raises:
        CheckpointError: it is damaged, is larger than a snapshot may be, or holds what no snapshot has.
    """
    most = MOST_BYTES + MOST_FILES * _HEADERS_PER_FILE + tarfile.RECORDSIZE
    found: dict[str, SourceFile] = {}
    try:
        expander = zlib.decompressobj(wbits=31)
        content = expander.decompress(archive, most)
        if not expander.eof:
            raise CheckpointError(f"{name} is damaged: it is cut short, or larger than a snapshot may be")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:", errorlevel=2) as members:
            for member in members:
                path = member.name.removeprefix(f"{_TOP}/")
                if path == member.name or not is_plain_name(path) or path in found:
                    raise CheckpointError(f"{name} is damaged: it holds a file {printable(member.name)!r}")
                if len(found) == MOST_FILES:
                    raise CheckpointError(f"{name} is damaged: it holds more than {MOST_FILES:,} files")
                found[path] = _unpacked(members, member, path, name)
    except (tarfile.TarError, zlib.error, ValueError, EOFError, OSError) as error:
        raise CheckpointError(f"{name} is damaged: it is no archive of a snapshot") from error
    return found


def _unpacked(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, name: str) -> SourceFile:
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
        if not posixpath.isabs(member.linkname) and (target == "." or is_plain_name(target)):
            return SourceFile(os.fsencode(member.linkname), is_link=True)
    elif (
        member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        and not member.issparse()  # a few bytes can describe a hole of any size
        and (file := archive.extractfile(member)) is not None
    ):
        return SourceFile(file.read(), is_executable=bool(member.mode & stat.S_IXUSR))
    raise CheckpointError(f"{name} is damaged: {printable(path)!r} is neither a file nor a link within the code")


def write_source(files: Mapping[str, SourceFile], folder: Path) -> None:
    """Write the files of a snapshot into a new folder, links last, so that nothing is written through one.

    Raises:
        CheckpointError: links lead out of the folder together, which none does alone, or a name is a file and a folder.
        OSError: it can't be written.
    """
    folder.mkdir()
    try:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for name, file in sorted(files.items(), key=lambda item: item[1].is_link):
            if file.is_link:
                (folder / name).symlink_to(os.fsdecode(file.content))
            else:
                with (folder / name).open("xb") as written:
                    written.write(file.content)
                    written.flush()
                    os.fsync(written.fileno())
                (folder / name).chmod(0o755 if file.is_executable else 0o644)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise CheckpointError(f"the snapshot is damaged: a name in it is a file and a folder: {error}") from error
    refuse_outside_links(folder)


def differing_files(files: Mapping[str, SourceFile], folder: Path) -> list[str]:
    """The paths of a snapshot at which a folder has nothing, or other content."""
    return [name for name, file in files.items() if not _is_same(folder / name, file)]


def _is_same(path: Path, file: SourceFile) -> bool:
    if path.is_symlink() or file.is_link:
        return path.is_symlink() and file.is_link and os.fsencode(path.readlink()) == file.content
    try:
        return read_bytes(path, max_bytes=len(file.content)) == file.content
    except (OSError, UntrustedFileError):
        return False
