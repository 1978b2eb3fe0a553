"""A registry in a folder: ROOT/NAME/VERSION/, published whole and never changed, and ROOT/NAME/aliases.json."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from runner.base.errors import OutputError, RegistryError
from runner.base.files import (
    as_json,
    locked,
    named_write_errors,
    publish,
    sha256_of,
    sync_file,
    sync_folder,
    temporary_beside,
    write_json,
)
from runner.base.untrusted import UntrustedFileError, open_regular, unreadable
from runner.base.user_paths import refuse_outside_links, refuse_outside_links_at
from runner.config.schema.calls.of_models import NAME_PATTERN
from runner.run.contents import read_object
from runner.run.run_folder import timestamp
from runner.tools.registry.versions import (
    LAST_VERSION,
    MODEL_CARD_FILE,
    PACKAGE_FOLDER,
    VERSION_FILE,
    Aliases,
    Draft,
    RegisteredFile,
    VersionRecord,
    not_registered,
)

ALIASES_FILE = "aliases.json"
_NAME = re.compile(NAME_PATTERN)
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_LOCK_FILE = ".lock"
_LOCK_WAIT_SECONDS = 60.0
_ABANDONED_SECONDS = 86_400.0
_COPIED_BYTES = 1 << 20


class FolderRegistry:
    """Versions of models in a folder that several processes, also of several machines, may use at once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._root)

    def names(self) -> list[str]:
        """The models that have a version, sorted."""
        return sorted(name for name in _entries(self._root) if _NAME.fullmatch(name) and self.versions(name))

    def versions(self, name: str) -> list[int]:
        """The versions of a model, ascending; none of a model that is not registered."""
        return sorted(int(entry) for entry in _entries(self._home(name)) if _NUMBER.fullmatch(entry))

    def aliases(self, name: str) -> dict[str, int]:
        """The version that each alias of a model names."""
        home = self._home(name)
        refuse_outside_links_at(self._root, [f"{name}/{ALIASES_FILE}"])
        with suppress(FileNotFoundError):
            return read_object(home / ALIASES_FILE, Aliases)
        return {}

    def read(self, name: str, version: int) -> VersionRecord:
        """What is known of a version."""
        folder = self._folder(name, version)
        try:
            values = read_object(folder / VERSION_FILE, VersionRecord)
        except FileNotFoundError as error:
            raise RegistryError(f"{folder} is damaged: it has no {VERSION_FILE}") from error
        record = VersionRecord.model_validate(values)
        if (record.name, record.version) != (name, version):
            raise RegistryError(
                f"{folder} is damaged: its {VERSION_FILE} is that of {record.name}/{record.version}; versions are "
                "neither moved nor renamed"
            )
        return record

    def set_alias(self, name: str, alias: str, version: int, *, holder: int | Literal["any"] | None = "any") -> None:
        """Let an alias name a version, whose files are checked first."""
        self.package(name, version)
        with self._locked(name):
            aliases = self.aliases(name)
            if holder != "any" and aliases.get(alias) != holder:
                raise RegistryError(
                    f"{name}@{alias} was set to version {aliases.get(alias)} meanwhile, and nothing was changed; it is "
                    f"{f'version {holder}' if holder else 'no version'} that version {version} was compared with"
                )
            write_json(self._home(name) / ALIASES_FILE, dict(sorted({**aliases, alias: version}.items())))

    def package(self, name: str, version: int) -> Path:
        """The package folder of a version, once its files have the registered checksums."""
        record, folder = self.read(name, version), self._folder(name, version)
        check_files(folder, of_package(record), place=str(folder))
        return folder / PACKAGE_FOLDER

    def download(self, name: str, version: int, output: Path) -> None:
        """Copy a version to a new folder; the copy is checked, not the original."""
        record, folder = self.read(name, version), self._folder(name, version)
        with work_folder(output) as temporary:
            for file, registered in record.files.items():
                (temporary / file).parent.mkdir(exist_ok=True)
                _copy(folder / file, temporary / file, registered)
            (temporary / VERSION_FILE).write_bytes(as_json(record.model_dump(mode="json")))
            if (folder / MODEL_CARD_FILE).is_file():
                shutil.copyfile(folder / MODEL_CARD_FILE, temporary / MODEL_CARD_FILE)
            publish_checked(temporary, output)

    def add(self, name: str, draft: Draft) -> int:
        """Make a new version: all is written beside first, so that the lock is held for the renaming only."""
        home = self._home(name)
        with named_write_errors(home):
            home.mkdir(parents=True, exist_ok=True)
        with work_folder(home / "new") as temporary:
            draft.write(temporary)
            files = files_of(temporary)
            for file in files:
                (temporary / file).chmod((temporary / file).stat().st_mode & 0o555)  # a version is never changed
            _sync_all(temporary)
            with self._locked(name):
                self._remove_abandoned(name)
                # An alias may still name a version that was deleted, and must not come to name another one.
                number = max([*self.versions(name), *self.aliases(name).values()], default=0) + 1
                if number > LAST_VERSION:
                    raise RegistryError(f"{home} holds version {number - 1}, after which there is no other")
                record = finished_record(name, number, files, draft.facts)
                (temporary / VERSION_FILE).write_bytes(as_json(record.model_dump(mode="json")))
                (temporary / MODEL_CARD_FILE).write_text(draft.card(record), encoding="utf-8")
                (temporary / VERSION_FILE).chmod((temporary / VERSION_FILE).stat().st_mode & 0o555)
                for file in (VERSION_FILE, MODEL_CARD_FILE):
                    sync_file(temporary / file)
                sync_folder(temporary)
                publish(temporary, home / str(number))
        return number

    def _home(self, name: str) -> Path:
        """The folder of a model."""
        assert _NAME.fullmatch(name), "a name that was typed is checked by the schema"
        refuse_outside_links_at(self._root, [name])
        return self._root / name

    def _folder(self, name: str, version: int) -> Path:
        versions = self.versions(name)
        if version not in versions:
            raise not_registered(self, name, version, versions)
        refuse_outside_links_at(self._root, [f"{name}/{version}"])
        folder = self._root / name / str(version)
        refuse_outside_links(folder)
        return folder

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        refuse_outside_links_at(self._root, [f"{name}/{_LOCK_FILE}"])
        try:
            with locked(self._home(name) / _LOCK_FILE, wait_seconds=_LOCK_WAIT_SECONDS):
                yield
        except BlockingIOError as error:
            raise RegistryError(
                f"{self._root / name}: another process has held its lock for long; try again"
            ) from error

    def _remove_abandoned(self, name: str) -> None:
        """Remove what killed processes have left: an unfinished version that nobody has touched for a day."""
        for folder in self._home(name).glob(".new.*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS and not folder.is_symlink():
                    shutil.rmtree(folder, ignore_errors=True)


def finished_record(name: str, number: int, files: dict[str, RegisteredFile], facts: dict[str, Any]) -> VersionRecord:
    """The record of a new version."""
    return VersionRecord.model_validate(
        {
            "format": 1,
            "name": name,
            "version": number,
            "registered": timestamp(),
            "files": {file: registered.model_dump() for file, registered in files.items()},
            **facts,
        }
    )


def files_of(folder: Path) -> dict[str, RegisteredFile]:
    """Size and checksum of each file in a folder, and in the folders in it."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): RegisteredFile(sha256=sha256_of(path), bytes=path.stat().st_size)
        for path in found
    }


@contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside one that is to appear; what is left of it is removed."""
    temporary = temporary_beside(output)
    try:
        with named_write_errors(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def of_package(record: VersionRecord) -> dict[str, RegisteredFile]:
    """The files of a version that are its package."""
    return {file: known for file, known in record.files.items() if file.startswith(f"{PACKAGE_FOLDER}/")}


def check_files(folder: Path, files: Mapping[str, RegisteredFile], *, place: str) -> None:
    """Compare files with what was registered.

    Args:
        folder: where they are.
        files: by their names in it.
        place: where they come from, for messages.

    Raises:
        RegistryError: a file is missing or differs.
    """
    for name, registered in files.items():
        try:
            is_same = (folder / name).stat().st_size == registered.bytes and sha256_of(
                folder / name
            ) == registered.sha256
        except OSError:
            is_same = False
        if not is_same:
            raise _differs(f"{place}/{name}")


def publish_checked(temporary: Path, output: Path) -> None:
    """Make a folder, whose files were checked, appear.

    Raises:
        OutputError: there is something already.
    """
    _sync_all(temporary)
    publish(temporary, output)


def _copy(file: Path, copy: Path, registered: RegisteredFile) -> None:
    """Copy a file and check the copy, which ends where it is longer than registered."""
    try:
        with open_regular(file) as source, copy.open("xb") as target:
            num_left = registered.bytes + 1
            while num_left > 0 and (chunk := source.read(min(num_left, _COPIED_BYTES))):
                target.write(chunk)
                num_left -= len(chunk)
    except FileNotFoundError:
        raise _differs(str(file)) from None
    except UntrustedFileError as error:
        raise RegistryError(unreadable(file, error)) from error
    if copy.stat().st_size != registered.bytes or sha256_of(copy) != registered.sha256:
        raise _differs(str(file))


def _differs(file: str) -> RegistryError:
    return RegistryError(
        f"{file} is missing or differs from what was registered (SHA-256), so this version is not used; register the "
        "run again, which makes a new version"
    )


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync_file(path)
    sync_folder(folder)


def _entries(folder: Path) -> list[str]:
    """Names of the folders in a folder; none where there is no such folder."""
    try:
        return [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise OutputError(f"{folder} can't be read: {error.strerror}") from error
