"""Resolves the paths of a data set to full ones, once, before anything is read."""

from __future__ import annotations

import os
from pathlib import Path

from runner.base.errors import ConfigError, InvalidDatasetError, Problem
from runner.base.reasons import reason_of
from runner.base.untrusted import printable
from runner.base.user_paths import typed_path
from runner.config.schema.data import DataConfig, DigitsData, FolderData, SyntheticData, TorchvisionData

# Changes when the files that `runner/data/sources/digits.py` writes change.
_DIGITS_FOLDER = "digits-v1"

_SplitPaths = tuple[Path | None, Path | None, Path | None]
"""Training, validation, test."""


def cache_folder() -> Path:
    """RUNNER_CACHE, else XDG_CACHE_HOME/runner, else ~/.cache/runner, as a full path that need not exist."""
    if own := os.environ.get("RUNNER_CACHE"):
        return Path(os.path.abspath(typed_path(own, "RUNNER_CACHE")))  # noqa: PTH100 - resolve() would replace links
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says to ignore relative paths.
    return Path(shared, "runner") if Path(shared).is_absolute() else _full("~/.cache/runner")


def resolve_paths(data: DataConfig) -> DataConfig:
    """The config with full paths for root, train, val, test and exclude; idempotent.

    Relative paths start at the current folder, `~` is the home folder, links are not resolved. `val` and `test` stay
    None if they are not given and ROOT/val or ROOT/test does not exist. Whether a given path exists is checked when the
    data set is opened.

    Raises:
        ConfigError: a path or list was given that this source does not use.
        InvalidDatasetError: a path begins with the home folder of an unknown user, or contains a NUL character.
    """
    match data:
        case FolderData():
            return _resolved_folder(data)
        case DigitsData():
            root = _full(data.root or cache_folder() / _DIGITS_FOLDER)
            # They need not exist: the first run writes them.
            splits: _SplitPaths = (root / "train", root / "val", None)
            _refuse_paths(data, splits, "is written into data.root")
            return _with_paths(data, root, *splits)
        case TorchvisionData():
            root = _full(data.root or cache_folder() / "torchvision")
            # Only EuroSAT has no test split.
            splits = (root, root, None if data.name == "EuroSAT" else root)
            _refuse_paths(data, splits, "has splits of its own in data.root")
            _refuse_exclude(data)
            return _with_paths(data, root, *splits)
        case SyntheticData():
            _refuse_paths(data, (None, None, None), "is made in memory")
            _refuse_exclude(data)
            return data.model_copy(update={"root": None})
        case _:
            return _with_paths(data, data.root, data.train, data.val, data.test)


def _resolved_folder(data: FolderData) -> DataConfig:
    if not data.root:
        return _with_paths(data, None, data.train, data.val, data.test)
    root = _full(data.root)
    val, test = (
        given or (folder if _exists(folder) else None)
        for given, folder in ((data.val, root / "val"), (data.test, root / "test"))
    )
    return _with_paths(data, root, data.train or root / "train", val, test)


def _with_paths(data: DataConfig, *paths: str | Path | None) -> DataConfig:
    full = [str(_full(path)) if path else None for path in (*paths, data.exclude)]
    return data.model_copy(update=dict(zip(("root", "train", "val", "test", "exclude"), full, strict=True)))


def _refuse_paths(data: DataConfig, own: _SplitPaths, reason: str) -> None:
    """Raise for paths that the source does not use, unless they are its own, from the saved config of a run."""
    names = [("train", own[0]), ("val", own[1]), ("test", own[2])]
    if isinstance(data, SyntheticData):
        names.append(("root", None))
    given = [(name, value) for name, path in names if (value := getattr(data, name)) and value != (path and str(path))]
    if given:
        raise ConfigError(
            [
                Problem(
                    key=f"data.{name}",
                    value=value,
                    has_value=True,
                    message=f"data={data.source} {reason}, so this path has no effect; leave it out",
                )
                for name, value in given
            ]
        )


def _refuse_exclude(data: DataConfig) -> None:
    if data.exclude is not None:
        message = f"images of data={data.source} have no paths that a list could name; leave it out"
        raise ConfigError([Problem(key="data.exclude", value=data.exclude, has_value=True, message=message)])


def _full(path: str | Path) -> Path:
    if "\0" in str(path):
        raise InvalidDatasetError(f"{printable(str(path))}: this is no path: it has a NUL character in it")
    try:
        expanded = Path(path).expanduser()
        expanded.exists()  # raises where a name is too long
    except OSError as error:
        raise InvalidDatasetError(f"{printable(str(path))[:200]}: this is no path: {reason_of(error)}") from error
    except RuntimeError as error:
        raise InvalidDatasetError(f"{path}: {error}; write the full path instead of ~") from error
    return Path(os.path.abspath(expanded))  # noqa: PTH100 - resolve() would replace links by what they point to


def _exists(folder: Path) -> bool:
    try:
        return folder.exists()
    except OSError:
        # Not permitted, or a name that is too long: the training folder can't be read either, which raises later.
        return False
