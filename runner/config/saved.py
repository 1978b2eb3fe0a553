"""Loads the config that a run has saved, with typed overrides applied, under the rules of `runner/config/trust.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf, flag_override

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.untrusted import UntrustedFileError, read_yaml, unreadable
from runner.config import group_options
from runner.config.config_folder import search_path
from runner.config.hydra_compose import compose_values, cpu_time_limit
from runner.config.hydra_errors import (
    COMMAND_LINE,
    override_behind,
    to_problem,
    unknown_option,
    with_origin,
    without_plus,
)
from runner.config.interpolation import as_written, interpolated, resolved
from runner.config.overrides import GROUPS, choices_of_groups, find_mistake, parsed_override, permissive
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import variants_of
from runner.config.schema.checks.validation import validate_config
from runner.config.trust import WEIGHTS, apply_trust_rules, is_typed, refuse_untyped_setup


def load_saved(
    run_dir: Path, overrides: Sequence[str] = (), *, is_trained: bool = False, only_reads: bool = False
) -> Config:
    """The config of a run with overrides applied.

    A typed value replaces the saved one; a typed group (`optimizer=adamw`) replaces that group as a whole.

    Args:
        run_dir: a run folder.
        overrides: as typed, without those of the command itself.
        is_trained: the model is only evaluated, so that rules of training don't apply.
        only_reads: the config starts no process; see :func:`runner.config.trust.apply_trust_rules`.

    Raises:
        CheckpointError: the folder has no readable config.
        ConfigError: the config with the overrides breaks the schema, or would reach beyond this machine by keys that
            are not typed.
    """
    return laid_over(read_values(run_dir), overrides, is_trained=is_trained, only_reads=only_reads)


def laid_over(
    values: dict[str, Any], overrides: Sequence[str] = (), *, is_trained: bool = False, only_reads: bool = False
) -> Config:
    """A config from saved values with overrides applied; see :func:`load_saved`."""
    with _translated(overrides):
        composed = _composed_defaults(chosen_options(values))
        filled = _filled(values, _plain(composed, resolve=False))
        defaults = _plain(composed)
        changed = apply_trust_rules(_with_overrides(filled, overrides), defaults, overrides, only_reads=only_reads)
    try:
        return saved_config(changed, is_trained=is_trained)
    except ConfigError as error:
        raise ConfigError([with_origin(problem, tuple(overrides), ()) for problem in error.problems]) from None


@contextmanager
def _translated(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Iterator[None]:
    """Raise exceptions of Hydra within the block as ConfigError."""
    try:
        yield
    except MissingConfigException as error:
        culprit = override_behind(error, overrides)
        problem = unknown_option(error, culprit, overrides, lambda group: group_options(group, folders))
        raise ConfigError([problem]) from error
    except ConfigError:
        raise
    except Exception as error:
        if (found := to_problem(error, overrides)) is None:
            raise
        raise ConfigError([found]) from error


@dataclass(frozen=True, kw_only=True)
class TypedCommand:
    """What was typed, which decides what a composed config may do; see :mod:`runner.config.trust`.

    To resume a sweep, only a part of its command is typed; the rest is read from its folder, which may come from
    others. All of that (overrides, axes, settings that hold overrides) ends in the configs of trials.
    """

    overrides: tuple[str, ...]
    """As typed."""
    defaults: Mapping[str, Any] | None = None
    """Where only a part of the command was typed: the values in conf/ with the typed option of `dist`."""

    @classmethod
    def for_sweep(cls, overrides: Sequence[str], folders: Sequence[Path]) -> TypedCommand:
        """What was typed to resume a sweep.

        Args:
            overrides: as typed.
            folders: the typed config folders.

        Raises:
            ConfigError: an unknown option of `dist`.
        """
        of_dist = [
            permissive(item)
            for item in overrides
            if without_plus(item).startswith("dist=") and find_mistake(item) is None
        ]
        with _translated(of_dist, folders):
            defaults = _plain(compose_values([*search_path(folders), *next(choices_of_groups(of_dist))]))
        return cls(overrides=tuple(overrides), defaults=defaults)

    @property
    def may_download(self) -> bool:
        """Whether the weights in model.weights may be downloaded."""
        return self.defaults is None or is_typed(WEIGHTS, self.overrides)

    def apply_trust(self, config: Config) -> Config:
        """The config under the rules of :mod:`runner.config.trust`.

        Raises:
            ConfigError: it would submit a job or connect to another machine by keys that are not typed.
        """
        if self.defaults is None:
            refuse_untyped_setup(config.to_save(), self.overrides)
            return config
        # A typed group covers none of the keys that the saved command sets in it, unlike with a saved run.
        values = [override for override in self.overrides if without_plus(override).partition("=")[0] not in GROUPS]
        return saved_config(apply_trust_rules(config.to_save(), self.defaults, values, only_reads=False))


def saved_config(values: Mapping[str, Any], *, is_trained: bool = False) -> Config:
    """A config from saved values; references to environment variables in them are resolved again.

    Args:
        values: as from :meth:`runner.config.schema.Config.to_save`.
        is_trained: the model is only evaluated, so that rules of training don't apply.

    Raises:
        ConfigError: with every mistake.
    """
    with cpu_time_limit():
        found, written = resolved(values)
    try:
        return validate_config(found, is_trained=is_trained).with_written(written)
    except ConfigError as error:
        raise ConfigError([as_written(problem, found, written) for problem in error.problems]) from None


def read_values(run_dir: Path) -> dict[str, Any]:
    """The saved config as plain values.

    Raises:
        CheckpointError: the folder has no readable config.
    """
    file = run_dir / "config.yaml"
    try:
        values = read_yaml(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{run_dir} is no run folder: it has no config.yaml") from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise CheckpointError(f"{file} is damaged: it holds no config")
    for group in ("hydra", *(name for name, field in Config.model_fields.items() if variants_of(field.annotation))):
        if not isinstance(values.get(group, {}), dict):
            raise CheckpointError(f"{file} is damaged: {group} is no group of keys")
    if keys := interpolated(values):
        raise CheckpointError(f"{file} is damaged: {keys[0]} has an interpolation; a saved config has values")
    return values


def _with_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    if problems := [problem for override in overrides if (problem := find_mistake(override))]:
        raise ConfigError(problems)
    typed = [parsed_override(permissive(override)) for override in overrides]
    swept = [override.input_line for override in typed if override.is_sweep_override()]
    if swept:
        raise ConfigError([Problem(key="", message=f"{swept[0]!r} has several values; a saved run takes one")])
    groups = {override.key_or_group for override in typed if override.key_or_group in GROUPS}
    if "experiment" in groups:
        raise ConfigError(
            [Problem(key="experiment", message="is for a new run, not for a saved one", origin=COMMAND_LINE)]
        )
    node = OmegaConf.create({**values, **_fresh_groups(groups, typed)})
    for override in typed:
        if override.key_or_group.split(".")[0] in groups:
            continue
        if override.is_delete():
            raise ConfigError([Problem(key=override.key_or_group, message="a saved config needs all of its keys")])
        OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
    _reset_split_folders(node, {override.key_or_group for override in typed})
    changed = OmegaConf.to_container(node, resolve=False)
    assert isinstance(changed, dict)
    return {str(key): value for key, value in changed.items()}


def chosen_options(values: Mapping[str, Any]) -> dict[str, str]:
    """The options of the groups with variants that give a config's variants."""
    groups = {group: values.get(group) for group in (*VARIANT_KEYS, "model")}
    # A value that is no group is refused by the schema later.
    known = {group: inner if isinstance(inner, Mapping) else {} for group, inner in groups.items()}
    options = {group: str(known[group].get(tag)) for group, tag in VARIANT_KEYS.items()}
    # The name alone may be that of another library too: timm has a resnet18 of its own.
    options["model"] = str(known["model"].get("family"))
    if options["model"] not in group_options("model"):
        options["model"] = str(known["model"].get("name"))
    return {group: option for group, option in options.items() if option in group_options(group)}


def default_values(options: Mapping[str, str]) -> dict[str, Any]:
    """The values in conf/ with these options of the groups."""
    return _plain(_composed_defaults(options))


def _composed_defaults(options: Mapping[str, str]) -> DictConfig:
    return compose_values([f"{group}={option}" for group, option in options.items()])


def _plain(composed: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        composed.pop("hydra", None)
    values = OmegaConf.to_container(composed, resolve=resolve)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _filled(values: dict[str, Any], defaults: Mapping[Any, Any]) -> dict[str, Any]:
    """Saved values, with the defaults of keys that are newer than the run; one that refers to a key means the run's."""
    filled = dict(values)
    for key, default in defaults.items():
        if key not in filled and key not in ("hydra", "experiment"):
            filled[key] = default
        elif isinstance(default, Mapping) and isinstance(filled.get(key), dict):
            filled[key] = _filled(filled[key], default)
    return filled


def _fresh_groups(groups: set[str], typed: Sequence[Override]) -> dict[str, Any]:
    """Typed groups as in a new run, with the values that are typed for their keys."""
    if not groups:
        return {}
    relevant = [str(item.input_line) for item in typed if item.key_or_group.split(".")[0] in groups]
    with _translated(relevant):
        composed = compose_values(relevant)
    return {group: OmegaConf.to_container(composed[group], resolve=False) for group in groups}


def _reset_split_folders(node: Any, typed: set[str]) -> None:  # noqa: ANN401 - OmegaConf's DictConfig
    """With another data.root, reset the saved full paths of the splits, which are under the saved root."""
    if "data.root" not in typed:
        return
    for name in ("train", "val", "test"):
        if f"data.{name}" not in typed:
            OmegaConf.update(node, f"data.{name}", None)
