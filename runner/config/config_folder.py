"""Hydra's config source for the user's config folders: regular files within one folder and within limits."""

from __future__ import annotations

import dataclasses
import filecmp
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import Container, OmegaConf

from runner.base.errors import ConfigError, Problem
from runner.base.untrusted import MAX_YAML_BYTES, UntrustedFileError, parse_yaml, read_text
from runner.config import CONF_DIR, conf_of_working_folder
from runner.config.interpolation import unreadable_interpolations
from runner.config.overrides import FOLDER_SCHEME, OPTION_NAME, SEARCH_PATH, folders_in

_HEADER_CHARACTERS = 512
# An entry of a defaults list: [override ][optional ][/]group[@package], or the name of a config.
_ENTRY = re.compile(r"(override )?(optional )?/?(?P<name>[^@]*)(?P<package>@[\w.]+)?", re.ASCII)
_INTERPOLATION = re.compile(r"\$\{[^{}]*\}")


class ConfigFolder(ConfigSource):
    """A folder of the user's configs.

    Unlike Hydra's FileConfigSource it reads no device and no FIFO, nothing outside of the folder, and no file that
    would exhaust time or memory.
    """

    @staticmethod
    def scheme() -> str:
        """The scheme in Hydra's search path."""
        return FOLDER_SCHEME.removesuffix("://")

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file.

        Raises:
            UntrustedFileError: it is no regular file, no YAML within the limits, or lists a file outside of the folder.
            ConfigError: it has an interpolation that is not allowed.
        """
        file = self._file(self._normalize_file_name(config_path))
        if file is None:
            raise ConfigLoadError(f"Config not found : {Path(self.path) / config_path}")
        text = read_text(file, max_bytes=MAX_YAML_BYTES)
        values = parse_yaml(text, str(file))
        self._check_defaults(values, file)
        if problems := unreadable_interpolations(values):  # before OmegaConf parses them
            raise ConfigError([dataclasses.replace(problem, origin=f"from {file}") for problem in problems])
        # Parsed again by OmegaConf, which rejects duplicate keys and reads 1e-3 as a number.
        with file.open(encoding="utf-8") as stream:
            config = OmegaConf.load(stream)
        assert isinstance(config, Container)
        header = ConfigSource._get_header_dict(text[:_HEADER_CHARACTERS])
        return ConfigResult(config=config, path=self.full_path(), provider=self.provider, header=header)

    def available(self) -> bool:
        """Whether the folder exists."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Whether the folder of a group exists."""
        path = self._inside(config_path)
        return path is not None and path.is_dir()

    def is_config(self, config_path: str) -> bool:
        """Whether a file of this name exists; whether it is a regular file is checked when it is read."""
        return self._file(self._normalize_file_name(config_path)) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Names of groups and configs in the folder of a group."""
        folder, files = self._inside(config_path), list[str]()
        for path in folder.iterdir() if folder is not None else ():
            place = f"{config_path}/{path.name}" if config_path else path.name
            self._list_add_result(files, place, path.name, results_filter)
        return sorted(set(files))

    def _file(self, config_path: str) -> Path | None:
        path = self._inside(config_path)
        return path if path is not None and path.exists() and not path.is_dir() else None

    def _inside(self, config_path: str) -> Path | None:
        """The path of a name; None where `..` leads out of the folder. Links in the folder are followed."""
        path = Path(os.path.normpath(Path(self.path) / config_path))
        return path if path.is_relative_to(self.path) else None

    def _check_defaults(self, values: object, file: Path) -> None:
        entries = values.get("defaults") if isinstance(values, Mapping) else None
        for entry in entries if isinstance(entries, list) else ():
            pairs = entry.items() if isinstance(entry, Mapping) else [(entry, None)]
            for key, options in pairs:
                match = _ENTRY.fullmatch(str(key))
                names = [match["name"] if match else str(key)]
                names += map(str, options if isinstance(options, list) else [] if options is None else [options])
                for name in names:
                    if not OPTION_NAME.fullmatch(_INTERPOLATION.sub("x", name).removesuffix(".yaml")):
                        raise UntrustedFileError(
                            f"{file}: {name!r} in its defaults list must be the name of an option in the folder of its "
                            "group"
                        )
            if isinstance(entry, str):
                self._check_included(names[0], file)

    def _check_included(self, name: str, file: Path) -> None:
        """Raise if an experiment of ours and one of the user's have the name that a file of the user's builds on."""
        group = file.parent.relative_to(self.path)
        files = _files_of([CONF_DIR, Path(self.path)], str(group), name.removesuffix(".yaml"))
        if problem := _ambiguous(name, files):
            raise ConfigError([dataclasses.replace(problem, key="defaults", origin=f"from {file}")])


def experiment_files(hydra: Mapping[str, Any], overrides: Sequence[str]) -> list[Path]:
    """The files of the chosen experiments.

    Args:
        hydra: the composed node `hydra`, as plain values.
        overrides: that Hydra was given, without its prefixes.
    """
    found = (_files_of(_folders(hydra), "experiment", name) for name in _chosen_experiments(hydra, overrides))
    return [files[0] for files in found if files]


def ambiguous_options(hydra: Mapping[str, Any], overrides: Sequence[str]) -> list[Problem]:
    """Chosen options that several folders have, with other values: Hydra would silently read the first file.

    What conf/train.yaml chooses, and nobody else, is the runner's own whatever the folder is that one works in.

    The arguments are those of :func:`experiment_files`.
    """
    typed = {override.partition("=")[0].partition("@")[0] for override in overrides}
    choices = [(str(group), str(name)) for group, name in _choices(hydra).items()]
    chosen = [(group, name) for group, name in choices if group in typed or _default_choices().get(group) != name]
    chosen += [("experiment", name) for name in _chosen_experiments(hydra, overrides)]
    folders = _folders(hydra)
    found = ((group, _ambiguous(name, _files_of(folders, group, name))) for group, name in dict.fromkeys(chosen))
    return [dataclasses.replace(problem, key=group) for group, problem in found if problem is not None]


@functools.cache
def _default_choices() -> Mapping[str, str]:
    defaults = yaml.safe_load((CONF_DIR / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    pairs = (pair for entry in defaults if isinstance(entry, dict) for pair in entry.items())
    return {str(group).removeprefix("override ").removeprefix("/"): str(name) for group, name in pairs}


def _choices(hydra: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = hydra["runtime"].get("choices")
    return choices if isinstance(choices, Mapping) else {}


def _folders(hydra: Mapping[str, Any]) -> list[Path]:
    """The folders in Hydra's search path, in its order."""
    sources = hydra["runtime"]["config_sources"]
    return [Path(source["path"]) for source in sources if source["schema"] in ("file", ConfigFolder.scheme())]


def _chosen_experiments(hydra: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    typed = [override.partition("=")[2] for override in overrides if override.startswith("experiment=[")]
    names = [str(name) for value in typed for name in yaml.safe_load(value)]
    return names or [str(_choices(hydra).get("experiment"))]  # Hydra lists single choices only.


def _files_of(folders: Sequence[Path], group: str, name: str) -> list[Path]:
    """The files of an option, of which Hydra reads the first."""
    if not OPTION_NAME.fullmatch(name):
        return []
    return [path for folder in folders if (path := folder / group / f"{name}.yaml").is_file()]


def _ambiguous(name: str, files: Sequence[Path]) -> Problem | None:
    """The problem of several files for one option; an exact copy, as in a checkout of the runner, is none."""
    if all(_is_copy(file, files[0]) for file in files[1:]):
        return None
    message = f"is ambiguous: {' and '.join(map(str, files))} have this name, and differ"
    return Problem(key="", value=name, has_value=True, message=message, hint="give your file another name")


def _is_copy(file: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(file, other, shallow=False)
    except OSError:
        return False  # what can't be read can't be shown to be a copy


def search_path(folders: Sequence[Path]) -> list[str]:
    """The override of Hydra's search path that adds these folders; none without folders."""
    if not folders:
        return []
    Plugins.instance().register(ConfigFolder)
    places = [f"{FOLDER_SCHEME}{folder}".replace("'", "\\'") for folder in folders]
    return [f"{SEARCH_PATH}=[" + ",".join(f"'{place}'" for place in places) + "]"]


def with_config_dir_flags(arguments: Sequence[str]) -> list[str]:
    """Overrides as Hydra was given them, with --config-dir instead of what :func:`search_path` has made of it.

    conf/ of the working folder needs no flag.
    """
    flags = [f"--config-dir={folder}" for folder in folders_in(arguments) if Path(folder) != conf_of_working_folder()]
    return [*flags, *(item for item in arguments if not item.startswith(f"{SEARCH_PATH}="))]
