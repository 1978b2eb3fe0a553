"""Composes and checks the config of each trial, as Hydra does for each job of a multirun."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, flag_override

from runner.base.errors import ConfigError, Problem
from runner.config import group_options
from runner.config.hydra_compose import checked_config, cpu_time_limit, plain_values
from runner.config.hydra_errors import override_behind, to_problem, unknown_option, without_plus
from runner.config.overrides import folders_in
from runner.config.saved import TypedCommand, saved_config
from runner.config.schema import Config
from runner.config.schema.checks.effects import effects
from runner.config.schema.checks.validation import validate_config
from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.axes import Axis, bounds, element_of
from runner.tools.sweep.sweep_folder import Trial


@dataclass(frozen=True, kw_only=True)
class Composer:
    """Makes trials out of values of the axes."""

    loader: ConfigLoader
    master: DictConfig
    """The composed config of the sweep, in which the keys that vary have their defaults."""
    shared: Sequence[str]
    """Overrides that all trials have."""
    axes: Sequence[Axis]
    command: TypedCommand
    """What was typed; a sweep that is resumed takes the rest from its folder."""
    found_before: tuple[Problem, ...] = ()
    """Mistakes in overrides that were kept from Hydra, since it stops at the first one."""

    def trial(self, number: int, values: Mapping[str, str]) -> Trial:
        """The trial with these values of the axes.

        Raises:
            ConfigError: with every mistake in its config.
        """
        config, overrides = self._config(self.overrides_of(values))
        return Trial(
            number=number,
            identity=trial_identity(config.model_dump(mode="json"), values),
            values=dict(values),
            overrides=_without_sweep(overrides),
            config=config.to_save(),
            experiments=list(config.experiments),
        )

    def overrides_of(self, values: Mapping[str, str]) -> list[str]:
        """The overrides for Hydra of a trial with these values."""
        elements = {axis.key: axis.override for axis in self.axes}
        return [*self.shared, *(f"{elements[key]}={value}" for key, value in values.items())]

    def recompose(self, values: Mapping[str, str]) -> dict[str, Any]:
        """The config of a recorded trial: its values, and all else as it is typed now.

        Raises:
            ConfigError: the values do not fit.
        """
        elements = {axis.key: axis.override for axis in self.axes}
        shared = [item for item in self.shared if without_plus(item).partition("=")[0] not in values]
        own = [f"{elements.get(key, element_of(key))}={value}" for key, value in values.items()]
        config, _ = self._config([*shared, *own])
        return config.to_save()

    def trial_of_overrides(self, number: int, overrides: list[str], shared: Collection[str]) -> Trial:
        """The trial of overrides that another sweeper has made up; those that not all jobs share are its values.

        Raises:
            ConfigError: with every mistake in its config.
        """
        config, overrides_of_job = self._config(overrides)
        varied = [without_plus(item).partition("=") for item in overrides if item not in shared]
        values = {key: value for key, _, value in varied}
        return Trial(
            number=number,
            identity=trial_identity(config.model_dump(mode="json"), values),
            values=values,
            overrides=_without_sweep(overrides_of_job),
            config=config.to_save(),
            experiments=list(config.experiments),
        )

    def trials(self, combinations: Sequence[Mapping[str, str]], first_number: int = 0) -> list[Trial]:
        """Trials of many combinations of values, each identity once.

        Raises:
            ConfigError: with the mistakes of all of them.
        """
        found: dict[str, Trial] = {}
        problems: dict[str, Problem] = {}
        for values in combinations:
            try:
                trial = self.trial(first_number + len(found), values)
                found.setdefault(trial.identity, trial)
            except ConfigError as error:
                problems |= {str(problem): problem for problem in error.problems}
        if problems:
            raise ConfigError(list(problems.values()))
        return list(found.values())

    def check_axes(self) -> Config:
        """Check the configs with each axis at each of its bounds and the others at their first; returns the first one.

        Raises:
            ConfigError: with every mistake.
        """
        first = self._applying({axis.key: bounds(axis)[0] for axis in self.axes})
        # Where an axis has a condition, the axes that it depends on take a value that fulfils it.
        varied = [
            self._applying({**first, **{key: allowed[0] for key, allowed in axis.when.items()}, axis.key: value})
            for axis in self.axes
            for value in bounds(axis)
        ]
        trials = self.trials([first, *varied])
        return saved_config(trials[0].config)

    def _applying(self, values: Mapping[str, str]) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for axis in self.axes:
            if axis.applies({**values, **chosen}):
                chosen[axis.key] = values.get(axis.key) or bounds(axis)[0]
        return chosen

    def _config(self, overrides: list[str]) -> tuple[Config, tuple[str, ...]]:
        try:
            with cpu_time_limit():
                composed = self.loader.load_sweep_config(self.master, overrides)
        except MissingConfigException as error:
            culprit = override_behind(error, overrides)
            options = partial(group_options, own_folders=folders_in(self.master.hydra.overrides.hydra))
            raise ConfigError([*self.found_before, unknown_option(error, culprit, overrides, options)]) from error
        except ConfigError:
            raise
        except Exception as error:
            refusal = to_problem(error, overrides)
            if refusal is None:
                raise
            raise ConfigError([*self.found_before, refusal]) from error
        with flag_override(composed, ["struct", "readonly"], [False, False]):
            HydraConfig.instance().set_config(composed)
        given = [*self.master.hydra.overrides.hydra, *overrides]
        return checked_config(composed, self.found_before, given, self.command.apply_trust)


def sweep_config(master: DictConfig) -> SweepConfig:
    """The section `sweep` of a composed config, whatever the rest of it may be.

    Raises:
        ConfigError: with every mistake in this section.
    """
    values: dict[str, Any] = {str(key): value for key, value in plain_values(without_hydra(master), []).items()}
    try:
        return validate_config(values).sweep
    except ConfigError as error:
        problems = [problem for problem in error.problems if problem.key.split(".")[0] == "sweep"]
        if problems:
            raise ConfigError(problems) from None
    return SweepConfig.model_validate_json(json.dumps(values["sweep"]))


def without_hydra(master: DictConfig) -> DictConfig:
    """A copy of a composed config without Hydra's own node."""
    copied = master.copy()
    with flag_override(copied, ["struct", "readonly"], [False, False]):
        del copied["hydra"]
    assert isinstance(copied, DictConfig)
    return copied


def _without_sweep(overrides: Sequence[str]) -> list[str]:
    return [item for item in overrides if not item.startswith(("sweep.", "sweep="))]


def trial_identity(config: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """SHA-256, in hexadecimal, of the values of a config that affect the result.

    Args:
        config: complete and checked, as plain values.
        varied: keys that the sweep varies; they count whatever their effect, since the sweep compares them.
    """
    values = identifying_values(config, varied)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def identifying_values(config: Mapping[str, Any], varied: Iterable[str] = ()) -> dict[str, Any]:
    """The values of a config that :func:`trial_identity` hashes."""
    values, kept = copy.deepcopy(dict(config)), set(varied)
    for key, effect in effects().items():
        is_varied = any(name == key or name.startswith(f"{key}.") for name in kept)
        if not effect.tells_trials_apart and not is_varied:
            *parents, last = key.split(".")
            section = values
            for name in parents:
                section = section.get(name, {})
            section.pop(last, None)
    return values
