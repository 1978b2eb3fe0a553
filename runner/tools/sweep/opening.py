"""Opens the folder of a sweep: a new one, or one to continue, which has to be of the same experiment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from runner.base import console
from runner.base.errors import ConfigError, OutputError, RunnerError
from runner.base.files import write_atomic
from runner.base.safe_text import mask_credentials, mask_credentials_in
from runner.base.user_paths import refuse_outside_links
from runner.config.config_folder import with_config_dir_flags
from runner.config.saved import saved_config
from runner.config.schema.checks.effects import changes
from runner.config.schema.sweep import SweepConfig
from runner.run.run_folder import read_record, timestamp
from runner.tools.sweep.composer import Composer, identifying_values, trial_identity
from runner.tools.sweep.leaderboard import describe_values
from runner.tools.sweep.sweep_folder import WRITTEN_FILES, SweepFolder, Trial, is_sweep

_MOST_CHANGES_SHOWN = 3


@contextmanager
def open_sweep(composer: Composer, config: SweepConfig, path: Path) -> Iterator[SweepFolder]:
    """Lock the folder of a sweep; a new one is recorded at once, an old record stays until :func:`record_command`.

    Raises:
        OutputError: another process holds the lock, or the folder is of something else.
    """
    refuse_outside_links(path)
    if not is_sweep(path):
        if (path / "0").exists():
            raise OutputError(f"{path} already holds runs that are no trials of this kind; choose another sweep.dir")
        there = [name for name in WRITTEN_FILES if (path / name).exists()]
        if there:
            raise OutputError(f"{path} is no folder of a sweep, but has {', '.join(there)}; choose another sweep.dir")
    is_new = not path.exists()
    folder = SweepFolder(path)
    with folder.hold(), console.log_to_file(folder.log_file()):
        try:
            if is_sweep(path):
                folder.record()
            else:
                record_command(folder, composer, config)
            yield folder
        except RunnerError:
            # While it is locked: another process may have begun in the same folder at the same moment.
            if is_new and not any((path / "trials").glob("*.json")):
                shutil.rmtree(path, ignore_errors=True)
            raise


def record_command(folder: SweepFolder, composer: Composer, config: SweepConfig) -> None:
    """Record the command for `resume run=SWEEP`, once all checks have passed."""
    before = folder.record() if is_sweep(folder.path) else {}
    folder.begin(
        {
            "start": before.get("start", timestamp()),
            "argv": mask_credentials_in(with_config_dir_flags(sys.argv[1:])),
            "cwd": str(Path.cwd()),
            "metrics": list(config.metrics),
            "directions": list(config.directions),
        }
    )
    write_atomic(folder.path / "multirun.yaml", mask_credentials(OmegaConf.to_yaml(composer.master)))


def read_trials(folder: SweepFolder) -> list[Trial]:
    """The trials in the folder of a sweep, with identities as this version computes them.

    Raises:
        OutputError: a record is damaged.
    """
    # An older version may have hashed other keys.
    trials = folder.trials()
    for trial in trials:
        if trial.config:
            trial.identity = trial_identity(trial.config, trial.values)
    return trials


def merge_trials(known: Sequence[Trial], requested: Sequence[Trial]) -> list[Trial]:
    """The known trials, then the requested ones that are not among them, with the numbers that follow."""
    identities = {trial.identity for trial in known}
    new = [trial for trial in requested if trial.identity not in identities]
    first = max((trial.number for trial in known), default=-1) + 1
    return [*known, *(replace(trial, number=first + at) for at, trial in enumerate(new))]


def use_typed_configs(
    folder: SweepFolder, known: Sequence[Trial], requested: Sequence[Trial], composer: Composer
) -> None:
    """Give the trials that may still be trained the config that was typed now, as the folder may come from elsewhere.

    Keys that affect the result must be the same in both; all other keys, such as options of SLURM, are never taken
    from the folder.

    Args:
        folder: of the sweep.
        known: its trials.
        requested: all trials of a grid; none where a search proposes them.
        composer: makes configs out of values.

    Raises:
        OutputError: the values of a trial make another config than its record holds.
    """
    fresh = {trial.identity: trial for trial in requested}
    for trial in known:
        same = fresh.get(trial.identity)
        if same is not None:
            config, overrides = same.config, same.overrides
        elif requested or not trial.config or trial.same_as is not None or _is_over(folder, trial):
            continue  # it will not be trained
        else:
            config, overrides = _composed_again(folder, trial, composer), trial.overrides
        if (config, overrides) != (trial.config, trial.overrides):
            trial.config, trial.overrides = config, overrides
            folder.save(trial)


def _is_over(folder: SweepFolder, trial: Trial) -> bool:
    run_dir = folder.run_dir(trial)
    return (run_dir / "run.json").is_file() and read_record(run_dir)["status"] in ("completed", "pruned")


def _composed_again(folder: SweepFolder, trial: Trial, composer: Composer) -> dict[str, Any]:
    record = f"{folder.path}/trials/{trial.number}.json"
    unknown = sorted(trial.values.keys() - {axis.key for axis in composer.axes})
    if unknown:
        raise OutputError(f"{record}: {', '.join(unknown)} is no key that this sweep varies; remove it, or type it too")
    try:
        config = composer.recompose(trial.values)
    except ConfigError as error:
        raise OutputError(f"{record} does not fit what was typed: {error}; remove it, and the trial is lost") from error
    if identifying_values(config, trial.values) != identifying_values(trial.config, trial.values):
        raise OutputError(f"{record} is damaged: it holds another config than its values make; remove it")
    return config


def check_same_experiment(folder: SweepFolder, known: Sequence[Trial], composer: Composer) -> None:
    """Check that the folder is of the same experiment, as one leaderboard can't compare trials of two.

    The values of a known trial, with all else as it is typed now, have to make the same trial. Further values, and
    further keys that vary, may be added.

    Raises:
        OutputError: they make another trial.
    """
    trial = next((trial for trial in known if trial.config), None)
    if trial is None:
        return
    try:
        saved_config(trial.config)
    except ConfigError as error:
        raise OutputError(f"{folder.path}/trials/{trial.number}.json is damaged: its config: {error}") from error
    other = f"{folder.path} holds a sweep of another experiment"
    whereto = f"choose another sweep.dir, or continue as it was begun: python -m runner resume run={folder.path}"
    try:
        now = composer.recompose(trial.values)
    except ConfigError as error:
        message = f"{other}, whose trial {trial.number} does not fit what was typed: {error}; {whereto}"
        raise OutputError(message) from error
    added = [axis.key for axis in composer.axes if axis.key not in trial.values]
    differing = [
        change
        for change in changes(identifying_values(trial.config, trial.values), identifying_values(now, trial.values))
        if not any(key == "experiment" or f"{change[0]}.".startswith(f"{key}.") for key in added)
    ]
    if differing:
        changed = ", ".join(f"{key} {old} → {new}" for key, old, new in differing[:_MOST_CHANGES_SHOWN])
        more = f" and {len(differing) - _MOST_CHANGES_SHOWN} more" if len(differing) > _MOST_CHANGES_SHOWN else ""
        which = f"trial {trial.number} ({describe_values(trial.values)})"
        raise OutputError(f"{other}: its {which} would change in {changed}{more}; {whereto}")
