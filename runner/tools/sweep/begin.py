"""Starts a sweep from what Hydra has composed: all is checked before a folder is made or a process is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from runner.base import console
from runner.base.console import LOGGER
from runner.base.errors import (
    ConfigError,
    LaunchError,
    MissingPackageError,
    OutputError,
    Problem,
    RunnerError,
    TrialsFailedError,
    how_to_install,
)
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.config.saved import saved_config
from runner.config.schema import Config
from runner.config.schema.sweep import SweepConfig
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits
from runner.run.run_folder import check_writable
from runner.tools.sweep.axes import Axis, grid_points
from runner.tools.sweep.composer import Composer
from runner.tools.sweep.leaderboard import SweepTable, describe_values
from runner.tools.sweep.opening import (
    check_same_experiment,
    merge_trials,
    open_sweep,
    read_trials,
    record_command,
    use_typed_configs,
)
from runner.tools.sweep.pool import Pool, Slot, TrialEnd, queued_jobs, record_submitted_jobs, slots_for
from runner.tools.sweep.run import Sweep
from runner.tools.sweep.sweep_folder import SweepFolder, Trial

GRID: Final = "grid"
Method = Literal["grid", "random", "tpe", "gp", "nsga2"]
_DRY_PROPOSALS = 10  # shown of a search that learns: its later proposals depend on results


def run_sweep(composer: Composer, config: SweepConfig, sampler: Method, *, launcher: Launcher | None) -> None:
    """Run a sweep, or with `sweep.dry_run` show what it would train.

    Args:
        composer: makes configs out of values.
        config: the section `sweep`.
        sampler: `grid`, or the name of the sampler that proposes trials.
        launcher: one of Hydra's launchers, which runs batches of jobs; None for processes of our own.

    Raises:
        ConfigError: with the mistakes of all trials; nothing has been made then.
        TrialsFailedError: any trial has failed.
        StoppedOnRequest: a signal asked for it.
    """
    trials = composer.trials(grid_points(composer.axes, config.zip)) if sampler == GRID else []
    base = saved_config(trials[0].config) if trials else _checked_search(composer, config)
    config = base.sweep.with_metric(base.trainer.monitor)
    if (sampler != GRID or config.pruner != "none") and importlib.util.find_spec("optuna") is None:
        raise MissingPackageError(
            f"searches and sweep.pruner need Optuna, which is not installed: {how_to_install('sweep')}; a grid "
            "(hydra/sweeper=grid sweep.pruner=none) works without it"
        )
    if config.dry_run:
        _show(composer, config, sampler, trials)
        return
    path = typed_path(str(composer.master.hydra.sweep.dir), "sweep.dir").absolute()
    _check_surroundings(base, composer.axes, path)
    slots = slots_for(base, len(trials) if sampler == GRID else config.num_trials)
    with StopRequest() as stop, open_sweep(composer, config, path) as folder:
        known = read_trials(folder)
        check_same_experiment(folder, known, composer)
        use_typed_configs(folder, known, trials, composer)
        both = merge_trials(known, trials)
        sweep = _assembled(composer, config, sampler, folder=folder, trials=both, slots=slots, stop=stop)
        for trial in both[len(known) :]:
            folder.save(trial)
        record_command(folder, composer, config)
        if sampler == GRID:
            identities = {trial.identity for trial in trials}
            sweep.not_to_start |= {trial.number for trial in known if trial.identity not in identities}
        total = sum(trial.same_as is None for trial in sweep.trials) if sampler == GRID else config.num_trials
        how = f"{len(slots)} at once" if launcher is None else f"by {type(launcher).__name__}"
        LOGGER.info("sweep       %s: %d trials, %s", sampler, total, how)
        LOGGER.info("folder      %s", folder.path)
        if launcher is None:
            sweep.run()
        else:
            run_in_batches(sweep, launcher, batch_size=len(trials) or len(slots))


def run_batch(composer: Composer, jobs: Sequence[list[str]], first_number: int) -> list[float | Exception | None]:
    """Run jobs that another sweeper has made up, each in a process of its own.

    Args:
        composer: without axes.
        jobs: the overrides of each job.
        first_number: number of the first one.

    Returns:
        For each job the best value of the metric, or why it failed.

    Raises:
        ConfigError: with the mistakes of all of them.
        StoppedOnRequest: a signal asked for it.
    """
    shared = set.intersection(*map(set, jobs))
    trials = [composer.trial_of_overrides(first_number + at, job, shared) for at, job in enumerate(jobs)]
    base = saved_config(trials[0].config)
    config = base.sweep.with_metric(base.trainer.monitor)
    path = typed_path(str(composer.master.hydra.sweep.dir), "sweep.dir").absolute()
    with StopRequest() as stop, open_sweep(composer, config, path) as folder:
        known = {trial.number: trial for trial in read_trials(folder)}
        for at, trial in enumerate(trials):
            before = known.get(trial.number)
            if before is not None and before.identity != trial.identity:
                raise OutputError(f"{folder.run_dir(trial)} already holds another trial; choose another sweep.dir")
            # Its record may come from elsewhere: what is trained is what was typed.
            trials[at] = replace(before, config=trial.config, overrides=trial.overrides) if before else trial
            folder.save(trials[at])
        record_command(folder, composer, config)
        slots = slots_for(base, len(trials))
        sweep = _assembled(composer, config, GRID, folder=folder, trials=trials, slots=slots, stop=stop)
        try:
            sweep.run()
        except TrialsFailedError as error:
            LOGGER.error("%s", error)
        outcomes = {outcome.trial.number: outcome for outcome in sweep.leaderboard().outcomes}
    return [
        TrialsFailedError(f"trial {trial.number}: {outcomes[trial.number].error}")
        if outcomes[trial.number].status == "failed"
        else (outcomes[trial.number].values or (None,))[0]
        for trial in trials
    ]


def _checked_search(composer: Composer, config: SweepConfig) -> Config:
    problems = []
    if not composer.axes:
        message = "a search needs keys that vary: KEY=interval(low,high), KEY=a,b,c or sweep.space"
        problems.append(Problem(key="", message=message))
    if config.zip:
        problems.append(Problem(key="sweep.zip", message="pairs the values of a grid: hydra/sweeper=grid"))
    if problems:
        raise ConfigError(problems)
    return composer.check_axes()


def _check_surroundings(base: Config, axes: Sequence[Axis], path: Path) -> None:
    """Check what would fail all trials: the folder, and the data where no key of it varies."""
    if base.dist.nodes > 1 and base.dist.launcher != "submitted":
        raise LaunchError(
            f"a sweep of runs on dist.nodes = {base.dist.nodes} machines: each machine would run a sweep of its own. "
            f"Add hydra/sweeper=basic hydra/launcher=basic and type the same on each, with one sweep.dir={path}: job "
            "after job on all of them; or let SLURM find machines for each job: dist=slurm"
        )
    check_writable(path, key="output_dir" if base.sweep.dir is None else "sweep.dir")
    if any(axis.key.split(".")[0] in ("data", "experiment") for axis in axes):
        return
    open_splits(resolve_paths(base.data), base.seed, global_batch_size=base.data.fixed_batch_size)


def _assembled(
    composer: Composer,
    config: SweepConfig,
    sampler: Method,
    *,
    folder: SweepFolder,
    trials: Sequence[Trial],
    slots: Sequence[Slot],
    stop: StopRequest,
) -> Sweep:
    record_submitted_jobs(folder, trials)
    search = None
    if sampler != GRID or config.pruner != "none":
        from runner.tools.sweep.search.study import Search  # noqa: PLC0415 - Optuna, an extra

        search = Search(config, folder, composer.axes, None if sampler == GRID else sampler)
        search.prepare(trials)
    return Sweep(
        config=config,
        folder=folder,
        trials=trials,
        composer=composer,
        search=search,
        proposes=sampler != GRID,
        pool=Pool(folder=folder, slots=slots, may_download=composer.command.may_download),
        stop=stop,
        queued=queued_jobs({trial.job_id for trial in trials if trial.job_id is not None}),
    )


def _show(composer: Composer, config: SweepConfig, sampler: Method, trials: Sequence[Trial]) -> None:
    """Show the trials of a grid, or the first that a search would propose; starts and writes nothing."""
    notes = []
    if sampler != GRID:
        from runner.tools.sweep.search.study import first_proposals  # noqa: PLC0415 - Optuna, an extra

        num_shown = config.num_trials if sampler == "random" else min(config.num_trials, _DRY_PROPOSALS)
        trials = composer.trials(first_proposals(config, composer.axes, sampler, num_shown))
        notes.append(f"{len(trials)} different trials in {num_shown} proposals of {config.num_trials}")
        if sampler != "random":
            notes.append("later proposals depend on results")
    for trial in trials:
        console.show(f"{trial.number}  {describe_values(trial.values)}")
    for note in notes:
        console.show(note)
    console.show(f"sweep.dry_run: {len(trials)} trials; nothing was started")


def run_in_batches(sweep: Sweep, launcher: Launcher, batch_size: int) -> None:
    """Run a sweep batch by batch by one of Hydra's launchers; a signal stops it between two batches.

    Args:
        sweep: not yet started.
        launcher: runs a batch of jobs and returns when all have ended.
        batch_size: trials of a batch.

    Raises:
        StoppedOnRequest: a signal asked for it.
        TrialsFailedError: any trial has failed.
    """
    with console.live_view() as view:
        table = SweepTable(view, batch_size)
        sweep.tell_ended()
        while batch := sweep.next_batch(batch_size):
            # Hydra numbers the jobs of a batch one after the other, and so names their folders.
            for group in _consecutive(batch):
                overrides = [sweep.composer.overrides_of(trial.values) for trial in group]
                results = launcher.launch(overrides, initial_job_idx=group[0].number)
                for trial, result in zip(group, results, strict=True):
                    sweep.record_end(_trial_end(trial, result), table)
    sweep.finish()


def _consecutive(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Groups of trials whose numbers follow each other without a gap."""
    group: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        if group and trial.number != group[-1].number + 1:
            yield group
            group = []
        group.append(trial)
    yield group


def _trial_end(trial: Trial, result: JobReturn) -> TrialEnd:
    error = result._return_value if result.status != JobStatus.COMPLETED else None
    failure = None
    if error is not None:
        name = error.name if isinstance(error, RunnerError) else type(error).__name__
        failure = {"name": name, "message": str(error)}
    return TrialEnd(trial=trial, is_stopped=False, failure=failure, job_id=None)
