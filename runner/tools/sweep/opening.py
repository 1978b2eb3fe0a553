"""Opens the folder of a sweep: a new one, or one that goes on, which has to be of the same experiment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from runner.base import console
from runner.base.errors import ConfigError, OutputError, RunnerError
from runner.base.files import write_atomic
from runner.base.safe_text import masked, masked_values
from runner.base.user_paths import refuse_ways_out
from runner.config.own_files import as_typed_again
from runner.config.saved import saved_config
from runner.config.schema.effects import changes
from runner.config.schema.sweep import SweepConfig
from runner.run.run_folder import read_record, timestamp
from runner.tools.sweep.composer import Composer, identity_of_values, what_counts
from runner.tools.sweep.folder import WRITTEN_FILES, SweepFolder, Trial, is_sweep
from runner.tools.sweep.leaderboard import spoken

_MOST_CHANGES_TOLD = 3


@contextmanager
def opened(composer: Composer, config: SweepConfig, path: Path) -> Iterator[SweepFolder]:
    """Hold the folder of a sweep: a new one, or one that goes on, whose record stays until `record_command`.

    Raises:
        OutputError: when another process holds it, or it is of something else; what was made here is gone then.
    """
    refuse_ways_out(path)
    if not is_sweep(path):
        _refuse_to_overwrite(path)
    is_new = not path.exists()
    folder = SweepFolder(path)
    with folder.hold(), console.log_to_file(_log_of(folder)):
        try:
            if is_sweep(path):
                folder.record()
            else:
                record_command(folder, composer, config)
            yield folder
        except RunnerError:
            # Only by the process that holds it: another may have begun in the same folder at the same moment.
            if is_new and not any((path / "trials").glob("*.json")):
                shutil.rmtree(path, ignore_errors=True)  # Nothing of the sweep has begun.
            raise


def record_command(folder: SweepFolder, composer: Composer, config: SweepConfig) -> None:
    """Record what is carried out now, for `resume run=SWEEP`: once it is sure that it will be."""
    before = folder.record() if is_sweep(folder.path) else {}
    folder.begin(
        {
            "start": before.get("start", timestamp()),
            "argv": masked_values(as_typed_again(sys.argv[1:])),
            "cwd": str(Path.cwd()),
            "metrics": list(config.metrics),
            "directions": list(config.directions),
        }
    )
    write_atomic(folder.path / "multirun.yaml", masked(OmegaConf.to_yaml(composer.master)))


def known_trials(folder: SweepFolder) -> list[Trial]:
    """The trials of a sweep's folder, told apart by what counts today: an older runner may have counted other keys.

    Raises:
        OutputError: a record is damaged.
    """
    trials = folder.trials()
    for trial in trials:
        if trial.config:
            trial.identity = identity_of_values(trial.config, trial.values)
    return trials


def merged(known: Sequence[Trial], asked: Sequence[Trial]) -> list[Trial]:
    """The known trials, then those of the others that are new, with the numbers that follow."""
    identities = {trial.identity for trial in known}
    new = [trial for trial in asked if trial.identity not in identities]
    first = max((trial.number for trial in known), default=-1) + 1
    return [*known, *(Trial(**{**vars(trial), "number": first + at}) for at, trial in enumerate(new))]


def as_typed_now(folder: SweepFolder, known: Sequence[Trial], asked: Sequence[Trial], composer: Composer) -> None:
    """Give the trials that may still be trained the config that was typed: that of a record may be another's.

    What decides about the result is compared; what does not, such as who is asked for machines, is never taken from
    the folder.

    Args:
        folder: of the sweep.
        known: its trials.
        asked: all that a grid asks for; none where a search proposes them.
        composer: makes configs out of values.

    Raises:
        OutputError: the values of a trial make another config than its record holds.
    """
    fresh = {trial.identity: trial for trial in asked}
    for trial in known:
        same = fresh.get(trial.identity)
        if same is not None:
            config, overrides = same.config, same.overrides
        elif asked or not trial.config or trial.same_as is not None or _is_over(folder, trial):
            continue  # nobody trains it
        else:
            config, overrides = _composed_again(folder, trial, composer), trial.overrides
        if (config, overrides) != (trial.config, trial.overrides):
            trial.config, trial.overrides = config, overrides
            folder.save(trial)


def _is_over(folder: SweepFolder, trial: Trial) -> bool:
    run_dir = folder.run_dir(trial)
    return (run_dir / "run.json").is_file() and read_record(run_dir)["status"] in ("completed", "pruned")


def _composed_again(folder: SweepFolder, trial: Trial, composer: Composer) -> dict[str, Any]:
    place = f"{folder.path}/trials/{trial.number}.json"
    strange = sorted(trial.values.keys() - {axis.key for axis in composer.axes})
    if strange:
        raise OutputError(f"{place}: {', '.join(strange)} is no key that this sweep varies; remove it, or type it too")
    try:
        config = composer.again(trial.values)
    except ConfigError as error:
        raise OutputError(f"{place} does not fit what was typed: {error}; remove it, and the trial is lost") from error
    if what_counts(config, trial.values) != what_counts(trial.config, trial.values):
        raise OutputError(f"{place} is damaged: it holds another config than its values make; remove it")
    return config


def refuse_another(folder: SweepFolder, known: Sequence[Trial], composer: Composer) -> None:
    """Refuse to go on in the folder of another experiment: one leaderboard would compare what can't be compared.

    The values of a known trial, with all else as it is typed now, have to make the same trial. More values, and other
    keys that vary, may join.

    Raises:
        OutputError: when they make another one.
    """
    trial = next((trial for trial in known if trial.config), None)
    if trial is None:
        return
    try:
        saved_config(trial.config)
    except ConfigError as error:
        raise OutputError(f"{folder.path}/trials/{trial.number}.json is damaged: its config: {error}") from error
    begun = f"{folder.path} holds a sweep of another experiment"
    whereto = f"choose another sweep.dir, or go on as it was begun: python -m runner resume run={folder.path}"
    try:
        now = composer.again(trial.values)
    except ConfigError as error:
        message = f"{begun}, whose trial {trial.number} does not fit what was typed: {error}; {whereto}"
        raise OutputError(message) from error
    added = [axis.key for axis in composer.axes if axis.key not in trial.values]
    differing = [
        change
        for change in changes(what_counts(trial.config, trial.values), what_counts(now, trial.values))
        if not any(key == "experiment" or f"{change[0]}.".startswith(f"{key}.") for key in added)
    ]
    if differing:
        told = ", ".join(f"{key} {old} → {new}" for key, old, new in differing[:_MOST_CHANGES_TOLD])
        more = f" and {len(differing) - _MOST_CHANGES_TOLD} more" if len(differing) > _MOST_CHANGES_TOLD else ""
        which = f"trial {trial.number} ({spoken(trial.values)})"
        raise OutputError(f"{begun}: its {which} would change in {told}{more}; {whereto}")


def _refuse_to_overwrite(path: Path) -> None:
    if (path / "0").exists():
        raise OutputError(f"{path} already holds runs that are no trials of this kind; choose another sweep.dir")
    there = [name for name in WRITTEN_FILES if (path / name).exists()]
    if there:
        raise OutputError(f"{path} is no folder of a sweep, but has {', '.join(there)}; choose another sweep.dir")


def _log_of(folder: SweepFolder) -> Path:
    (folder.path / "logs").mkdir(exist_ok=True)
    return folder.path / "logs" / "sweep.log"
