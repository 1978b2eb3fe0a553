"""Where Hydra reads the user's own configs: regular files below one folder, within limits."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import Container, OmegaConf

from runner.base.errors import ConfigError
from runner.base.untrusted import MAX_YAML_BYTES, UntrustedFileError, parse_yaml, read_text
from runner.config.overrides import OPTION_NAME
from runner.config.references import unreadable

_HEADER_CHARACTERS = 512
_SEARCH_PATH = "hydra.searchpath=["
# An entry of a defaults list: [override ][optional ][/]group[@package], or the name of a config.
_ENTRY = re.compile(r"(override )?(optional )?/?(?P<name>[^@]*)(?P<package>@[\w.]+)?", re.ASCII)
_INTERPOLATION = re.compile(r"\$\{[^{}]*\}")


class OwnFiles(ConfigSource):
    """A folder of the user's own configs.

    Unlike Hydra's own reader of folders it reads no device and no FIFO, nothing outside of the folder, and no file that
    would take all time or memory.
    """

    @staticmethod
    def scheme() -> str:
        """What Hydra calls it in a search path."""
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        """One file.

        Raises:
            UntrustedFileError: it is no regular file, no YAML within the limits, or lists what lies outside.
            ConfigError: it holds an interpolation that is not taken.
        """
        file = self._file(self._normalize_file_name(config_path))
        if file is None:
            raise ConfigLoadError(f"Config not found : {Path(self.path) / config_path}")
        text = read_text(file, max_bytes=MAX_YAML_BYTES)
        values = parse_yaml(text, str(file))
        _check_defaults(values, file)
        if problems := unreadable(values):  # before OmegaConf parses them
            raise ConfigError([dataclasses.replace(problem, origin=f"from {file}") for problem in problems])
        # Hydra's own loader from here on: it tells duplicate keys and reads 1e-3 as a number.
        with file.open(encoding="utf-8") as stream:
            config = OmegaConf.load(stream)
        assert isinstance(config, Container)
        header = ConfigSource._get_header_dict(text[:_HEADER_CHARACTERS])
        return ConfigResult(config=config, path=self.full_path(), provider=self.provider, header=header)

    def available(self) -> bool:
        """Whether the folder is there."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Whether a folder of options is there."""
        path = self._inside(config_path)
        return path is not None and path.is_dir()

    def is_config(self, config_path: str) -> bool:
        """Whether a file of this name is there; one that is no regular file is refused when it is read."""
        path = self._file(self._normalize_file_name(config_path))
        return path is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Names of groups and configs in a folder of options."""
        folder, files = self._inside(config_path), list[str]()
        for path in folder.iterdir() if folder is not None else ():
            place = f"{config_path}/{path.name}" if config_path else path.name
            self._list_add_result(files, place, path.name, results_filter)
        return sorted(set(files))

    def _file(self, config_path: str) -> Path | None:
        path = self._inside(config_path)
        return path if path is not None and path.exists() and not path.is_dir() else None

    def _inside(self, config_path: str) -> Path | None:
        """The place that a name stands for; None where it would climb out of the folder.

        Links that the folder holds are the user's own.
        """
        path = Path(os.path.normpath(Path(self.path) / config_path))
        return path if path.is_relative_to(self.path) else None


def _check_defaults(values: object, file: Path) -> None:
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
                        f"{file}: {name!r} in its defaults list must be the name of an option, which lies in the "
                        "folder of its group"
                    )


def search_path(folders: Sequence[Path]) -> list[str]:
    """What makes Hydra read these folders too: an override of the search path, or nothing."""
    if not folders:
        return []
    Plugins.instance().register(OwnFiles)
    places = [f"{OwnFiles.scheme()}://{folder}".replace("'", "\\'") for folder in folders]
    return [_SEARCH_PATH + ",".join(f"'{place}'" for place in places) + "]"]


def as_typed_again(arguments: Sequence[str]) -> list[str]:
    """What Hydra was given, with --config-dir for what :func:`search_path` has made of it."""
    typed: list[str] = []
    for argument in arguments:
        if argument.startswith(_SEARCH_PATH):
            places = OverridesParser.create().parse_override(argument).value()
            assert isinstance(places, list)
            typed += [
                f"--config-dir={str(place).removeprefix(f'{OwnFiles.scheme()}://')}" for place in map(_text, places)
            ]
        else:
            typed.append(argument)
    return typed


def _text(place: object) -> str:
    return place.text if isinstance(place, QuotedString) else str(place)
