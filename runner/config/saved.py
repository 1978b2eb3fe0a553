"""The config that a run has saved, with what is typed laid over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf, flag_override

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.untrusted import UntrustedFileError, read_yaml
from runner.config import group_options
from runner.config.composing import compose_values, limited_time
from runner.config.interpolation import as_written, interpolated, resolved
from runner.config.overrides import GROUPS, choices_of_groups, parsed_override, permissive, refused
from runner.config.own_files import search_path
from runner.config.refusal import COMMAND_LINE, override_behind, plain, translate, unknown_option, with_origin
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import variants_of
from runner.config.schema.judge import judge
from runner.config.trust import WEIGHTS, is_typed, refuse_untyped_setup, trusted

_DATA_FOLDERS = ("train", "val", "test")


def load_saved(
    run_dir: Path, overrides: Sequence[str] = (), *, is_trained: bool = False, only_reads: bool = False
) -> Config:
    """The config of a run, with overrides laid over it.

    A typed value replaces the saved one; a typed group (`optimizer=adamw`) replaces that group as a whole.

    Args:
        run_dir: a run folder.
        overrides: as typed, without those that belong to the command itself.
        is_trained: whether the model only has to be evaluated; rules of training don't count then.
        only_reads: nothing is started by this config; see :func:`runner.config.trust.trusted`.

    Raises:
        CheckpointError: when the folder holds no readable config.
        ConfigError: when the overrides, or the config with them, break the schema, or would reach beyond this machine
            and that was not typed.
    """
    values = read_values(run_dir)
    with _translated(overrides):
        defaults = default_values(chosen_options(values))
        changed = trusted(_laid_over(_filled(values, defaults), overrides), defaults, overrides, only_reads=only_reads)
    try:
        return saved_config(changed, is_trained=is_trained)
    except ConfigError as error:
        raise ConfigError([with_origin(problem, tuple(overrides), ()) for problem in error.problems]) from None


@contextmanager
def _translated(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Iterator[None]:
    """What Hydra refuses within is raised as a ConfigError."""
    try:
        yield
    except MissingConfigException as error:
        culprit = override_behind(error, overrides)
        problem = unknown_option(error, culprit, overrides, lambda group: group_options(group, folders))
        raise ConfigError([problem]) from error
    except ConfigError:
        raise
    except Exception as error:
        refusal = translate(error, overrides)
        if refusal is None:
            raise
        raise ConfigError([refusal]) from error


@dataclass(frozen=True, kw_only=True)
class TypedCommand:
    """What was typed: by it a config is judged that is composed of that and of what others may have written.

    To go on with a sweep, only some of its command is typed; the rest stands in its folder, which may come from
    elsewhere. Whatever that says, in overrides, in axes or in settings that carry overrides, ends in configs of trials.
    """

    overrides: tuple[str, ...]
    """As typed."""
    defaults: Mapping[str, Any] | None = None
    """Where only some of the command was typed: the values in conf/ with the typed option of `dist`."""

    @classmethod
    def for_sweep(cls, overrides: Sequence[str], folders: Sequence[Path]) -> TypedCommand:
        """What was typed to go on with a sweep.

        Args:
            overrides: as typed.
            folders: of configs that were typed.

        Raises:
            ConfigError: an option of `dist` that is none.
        """
        of_dist = [permissive(item) for item in overrides if plain(item).startswith("dist=") and refused(item) is None]
        with _translated(of_dist, folders):
            defaults = _plain_values([*search_path(folders), *next(choices_of_groups(of_dist))])
        return cls(overrides=tuple(overrides), defaults=defaults)

    @property
    def may_download(self) -> bool:
        """Whether weights that the config names may be downloaded."""
        return self.defaults is None or is_typed(WEIGHTS, self.overrides)

    def judged(self, config: Config) -> Config:
        """The config, as far as it may be used; see :mod:`runner.config.trust`.

        Raises:
            ConfigError: it would submit a job or connect with another machine, and that was not typed.
        """
        if self.defaults is None:
            refuse_untyped_setup(config.to_save(), self.overrides)
            return config
        # Unlike a saved run's, a typed group replaces no value that the command lays over it: each counts by itself.
        values = [override for override in self.overrides if plain(override).partition("=")[0] not in GROUPS]
        return saved_config(trusted(config.to_save(), self.defaults, values, only_reads=False))


def saved_config(values: Mapping[str, Any], *, is_trained: bool = False) -> Config:
    """A config out of values as they are saved: what was left to the environment is read there again.

    Args:
        values: as :meth:`runner.config.schema.Config.to_save` gives them.
        is_trained: whether the model only has to be evaluated; rules of training don't count then.

    Raises:
        ConfigError: with every mistake.
    """
    with limited_time():
        found, written = resolved(values)
    try:
        return judge(found, is_trained=is_trained).with_written(written)
    except ConfigError as error:
        raise ConfigError([as_written(problem, found, written) for problem in error.problems]) from None


def read_values(run_dir: Path) -> dict[str, Any]:
    """The saved config as plain values.

    Raises:
        CheckpointError: when the folder holds no readable config.
    """
    file = run_dir / "config.yaml"
    try:
        values = read_yaml(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{run_dir} is no run folder: it has no config.yaml") from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(f"{file} can't be read: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise CheckpointError(f"{file} is damaged: it holds no config")
    for group in ("hydra", *(name for name, field in Config.model_fields.items() if variants_of(field.annotation))):
        if not isinstance(values.get(group, {}), dict):
            raise CheckpointError(f"{file} is damaged: {group} is no group of keys")
    if keys := interpolated(values):
        raise CheckpointError(f"{file} is damaged: {keys[0]} holds an interpolation; a saved config holds values")
    return values


def _laid_over(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    if problems := [problem for override in overrides if (problem := refused(override))]:
        raise ConfigError(problems)
    typed = [parsed_override(permissive(override)) for override in overrides]
    swept = [override.input_line for override in typed if override.is_sweep_override()]
    if swept:
        raise ConfigError([Problem(key="", message=f"{swept[0]!r} has several values; a saved run takes one")])
    groups = {override.key_or_group for override in typed if override.key_or_group in GROUPS}
    if "experiment" in groups:
        raise ConfigError(
            [Problem(key="experiment", message="belongs to a new run, not to a saved one", origin=COMMAND_LINE)]
        )
    node = OmegaConf.create({**values, **_fresh_groups(groups, typed)})
    for override in typed:
        if override.key_or_group.split(".")[0] in groups:
            continue
        if override.is_delete():
            raise ConfigError([Problem(key=override.key_or_group, message="a saved config needs all of its keys")])
        OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
    _forget_folders_of_another_root(node, {override.key_or_group for override in typed})
    changed = OmegaConf.to_container(node, resolve=False)
    assert isinstance(changed, dict)
    return {str(key): value for key, value in changed.items()}


def chosen_options(values: Mapping[str, Any]) -> dict[str, str]:
    """The options of the groups with variants that a config came from."""
    groups = {group: values.get(group) for group in (*VARIANT_KEYS, "model")}
    # What is no group is refused when the config is judged.
    known = {group: inner if isinstance(inner, Mapping) else {} for group, inner in groups.items()}
    options = {group: str(known[group].get(tag)) for group, tag in VARIANT_KEYS.items()}
    options["model"] = str(known["model"].get("name"))
    if options["model"] not in group_options("model"):
        options["model"] = str(known["model"].get("family"))
    return {group: option for group, option in options.items() if option in group_options(group)}


def default_values(options: Mapping[str, str]) -> dict[str, Any]:
    """The values in conf/ with these options of the groups."""
    return _plain_values([f"{group}={option}" for group, option in options.items()])


def _plain_values(overrides: Sequence[str]) -> dict[str, Any]:
    composed = compose_values(overrides)
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        del composed["hydra"]
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _filled(values: dict[str, Any], defaults: Mapping[Any, Any]) -> dict[str, Any]:
    """Saved values, with the defaults of keys that have come since they were saved."""
    filled = dict(values)
    for key, default in defaults.items():
        if key not in filled and key not in ("hydra", "experiment"):
            filled[key] = default
        elif isinstance(default, Mapping) and isinstance(filled.get(key), dict):
            filled[key] = _filled(filled[key], default)
    return filled


def _fresh_groups(groups: set[str], typed: Sequence[Override]) -> dict[str, Any]:
    """Typed groups as a new run would have them, with the values that are typed for their keys."""
    if not groups:
        return {}
    relevant = [str(item.input_line) for item in typed if item.key_or_group.split(".")[0] in groups]
    with _translated(relevant):
        composed = compose_values(relevant)
    return {group: OmegaConf.to_container(composed[group], resolve=False) for group in groups}


def _forget_folders_of_another_root(node: Any, typed: set[str]) -> None:  # noqa: ANN401 - OmegaConf's DictConfig
    """The saved full paths of the splits belong to the saved root; another root brings its own."""
    if "data.root" not in typed:
        return
    for name in _DATA_FOLDERS:
        if f"data.{name}" not in typed:
            OmegaConf.update(node, f"data.{name}", None)
