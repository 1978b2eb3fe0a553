"""From what Hydra has composed to a sweep at work: everything is checked before a folder or a process is made."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import optuna
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from optuna.storages import InMemoryStorage

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
)
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.config.saved import saved_config
from runner.config.schema import Config
from runner.config.schema.sweep import SweepConfig
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits
from runner.run.run_folder import check_writable
from runner.tools.sweep.axes import Axis
from runner.tools.sweep.composer import Composer
from runner.tools.sweep.folder import SweepFolder, Trial
from runner.tools.sweep.grid import combinations
from runner.tools.sweep.leaderboard import Leaderboard, SweepTable, spoken
from runner.tools.sweep.opening import as_typed_now, known_trials, merged, opened, record_command, refuse_another
from runner.tools.sweep.pool import End, Pool, Slot, adopt, queued, slots_for
from runner.tools.sweep.run import Sweep
from runner.tools.sweep.search.parameters import proposed_values, starting_points
from runner.tools.sweep.search.strategies import SamplerName, SeededSampler

GRID: Final = "grid"
Method = Literal["grid", "random", "tpe", "gp", "nsga2"]
_DRY_PROPOSALS = 10  # of a search that learns: its later proposals depend on results


def carry_out(composer: Composer, config: SweepConfig, sampler: Method, *, foreign: Launcher | None) -> None:
    """Carry out a sweep, or show what it would train.

    Args:
        composer: makes configs out of values.
        config: the section `sweep`.
        sampler: grid, or the name of what proposes.
        foreign: a launcher of somebody else's, which runs batches; None for processes of ours.

    Raises:
        ConfigError: with the mistakes of all trials; nothing has been made then.
        TrialsFailedError: when any trial has failed.
        StoppedOnRequest: when it was stopped.
    """
    trials = composer.trials(combinations(composer.axes, config.zip)) if sampler == GRID else []
    base = saved_config(trials[0].config) if trials else _checked_search(composer, config)
    config = base.sweep.with_metric(base.trainer.monitor)
    if sampler != GRID or config.pruner != "none":
        _need_optuna()
    if config.dry_run:
        _show(composer, config, sampler, trials)
        return
    path = typed_path(str(composer.master.hydra.sweep.dir), "sweep.dir").absolute()
    _check_surroundings(base, composer.axes, path)
    slots = slots_for(base, len(trials) if sampler == GRID else config.num_trials)
    with StopRequest() as stop, opened(composer, config, path) as folder:
        known = known_trials(folder)
        refuse_another(folder, known, composer)
        as_typed_now(folder, known, trials, composer)
        both = merged(known, trials)
        sweep = _assembled(composer, config, sampler, folder=folder, trials=both, slots=slots, stop=stop)
        for trial in both[len(known) :]:
            folder.save(trial)
        record_command(folder, composer, config)
        if sampler == GRID:
            identities = {trial.identity for trial in trials}
            sweep.left_alone |= {trial.number for trial in known if trial.identity not in identities}
        _introduce(sweep, sampler, foreign)
        run_foreign(sweep, foreign, batch_size=len(trials) or len(slots)) if foreign is not None else sweep.run()


def run_batch(composer: Composer, jobs: Sequence[list[str]], first_number: int) -> list[float | Exception | None]:
    """Run jobs that another sweeper has made up, each in a process of its own.

    Args:
        composer: without axes.
        jobs: the overrides of each.
        first_number: number of the first one.

    Returns:
        For each job the best value of the metric, or why it failed.

    Raises:
        ConfigError: with the mistakes of all of them.
        StoppedOnRequest: when it was stopped.
    """
    shared = set.intersection(*map(set, jobs))
    asked = [composer.typed(first_number + at, job, shared) for at, job in enumerate(jobs)]
    base = saved_config(asked[0].config)
    config = base.sweep.with_metric(base.trainer.monitor)
    path = typed_path(str(composer.master.hydra.sweep.dir), "sweep.dir").absolute()
    with StopRequest() as stop, opened(composer, config, path) as folder:
        known = {trial.number: trial for trial in known_trials(folder)}
        for number, trial in enumerate(asked):
            before = known.get(trial.number)
            if before is not None and before.identity != trial.identity:
                raise OutputError(f"{folder.run_dir(trial)} already holds another trial; choose another sweep.dir")
            # Its record may be another's: what is trained is what was typed.
            asked[number] = replace(before, config=trial.config, overrides=trial.overrides) if before else trial
            folder.save(asked[number])
        record_command(folder, composer, config)
        sweep = _assembled(
            composer, config, GRID, folder=folder, trials=asked, slots=slots_for(base, len(asked)), stop=stop
        )
        try:
            sweep.run()
        except TrialsFailedError as error:
            LOGGER.error("%s", error)
        outcomes = [place.outcome for place in sweep.leaderboard().places]
    told = {outcome.trial.number: outcome for outcome in outcomes}
    return [
        TrialsFailedError(f"trial {trial.number}: {told[trial.number].error}")
        if told[trial.number].status == "failed"
        else (told[trial.number].values or (None,))[0]
        for trial in asked
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


def _need_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise MissingPackageError(
            "searches and sweep.pruner need Optuna, which is not installed: pip install 'runner[sweep]'; a grid "
            "(hydra/sweeper=grid sweep.pruner=none) needs it not"
        )


def _check_surroundings(base: Config, axes: Sequence[Axis], path: Path) -> None:
    """What would fail all trials: the folder, and the data where no key of it varies."""
    if base.dist.nodes > 1 and base.dist.launcher != "submitted":
        raise LaunchError(
            f"a sweep of runs on dist.nodes = {base.dist.nodes} machines: each would carry out a sweep of its own. Add "
            f"hydra/sweeper=basic hydra/launcher=basic and type the same on each, with one sweep.dir={path}: job after "
            "job on all of them; or let SLURM find machines for each job: dist=slurm"
        )
    check_writable(path, key="output_dir" if base.sweep.dir is None else "sweep.dir")
    if any(axis.key.split(".")[0] in ("data", "experiment") for axis in axes):
        return
    open_splits(resolve_paths(base.data), base.seed, global_batch_size=base.data.batch_size)


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
    adopt(folder, trials)
    search = None
    if sampler != GRID or config.pruner != "none":
        from runner.tools.sweep.search.study import Search  # noqa: PLC0415 - Optuna, only where it has something to do

        search = Search(config, folder, composer.axes, None if sampler == GRID else sampler)
        search.prepare(trials)
    return Sweep(
        config=config,
        folder=folder,
        trials=trials,
        composer=composer,
        search=search,
        is_open=sampler != GRID,
        pool=Pool(
            folder=folder,
            slots=slots,
            may_download=composer.command.may_download,
        ),
        stop=stop,
        queued=queued({trial.job_id for trial in trials if trial.job_id is not None}),
    )


def _introduce(sweep: Sweep, sampler: Method, foreign: Launcher | None) -> None:
    known = [trial for trial in sweep.trials if trial.same_as is None]
    total = len(known) if sampler == GRID else sweep.config.num_trials
    how = f"{len(sweep.pool.slots)} at once" if foreign is None else f"by {type(foreign).__name__}"
    LOGGER.info("sweep       %s: %d trials, %s", sampler, total, how)
    LOGGER.info("folder      %s", sweep.folder.path)


def _show(composer: Composer, config: SweepConfig, sampler: Method, trials: Sequence[Trial]) -> None:
    """Show the trials of a grid, or the first that a search would propose; starts and writes nothing."""
    notes = []
    if sampler != GRID:
        from runner.tools.sweep.begin import first_proposals  # noqa: PLC0415

        num_shown = config.num_trials if sampler == "random" else min(config.num_trials, _DRY_PROPOSALS)
        values: list[Mapping[str, str]] = first_proposals(config, composer.axes, sampler, num_shown)
        trials = composer.trials(values)
        notes.append(f"{len(trials)} different trials in {num_shown} proposals of {config.num_trials}")
        if sampler != "random":
            notes.append("later proposals depend on results")
    for trial in trials:
        console.show(f"{trial.number}  {spoken(trial.values)}")
    for note in notes:
        console.show(note)
    console.show(f"sweep.dry_run: {len(trials)} trials; nothing was started")


def first_proposals(
    config: SweepConfig, axes: Sequence[Axis], sampler: SamplerName, num_proposals: int
) -> list[Mapping[str, str]]:
    """The first proposals of a search, as long as it knows no result.

    Raises:
        ConfigError: a starting point that does not fit the space.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=InMemoryStorage(),
        directions=list(config.directions),
        sampler=SeededSampler(sampler, config.seed),
    )
    for point in starting_points(config, axes):
        study.enqueue_trial(point)
    return [proposed_values(study.ask(), axes) for _ in range(num_proposals)]


def run_foreign(sweep: Sweep, launcher: Launcher, batch_size: int) -> Leaderboard:
    """Carry out a sweep batch by batch; a stop is heeded between two of them.

    Args:
        sweep: at its beginning.
        launcher: runs a batch of jobs and returns when all have ended.
        batch_size: trials of a batch.

    Raises:
        StoppedOnRequest: when it was stopped.
        TrialsFailedError: when any trial has failed.
    """
    with console.live_view() as view:
        table = SweepTable(view, batch_size)
        sweep.tell_known()
        while batch := sweep.next_batch(batch_size):
            # Hydra numbers the jobs of a batch one after the other, and so names their folders.
            for group in _consecutive(batch):
                overrides = [sweep.composer.overrides_of(trial.values) for trial in group]
                results = launcher.launch(overrides, initial_job_idx=group[0].number)
                for trial, result in zip(group, results, strict=True):
                    sweep.note(_end(trial, result), table)
    return sweep.concluded()


def _consecutive(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    group: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        if group and trial.number != group[-1].number + 1:
            yield group
            group = []
        group.append(trial)
    yield group


def _end(trial: Trial, result: JobReturn) -> End:
    error = result._return_value if result.status != JobStatus.COMPLETED else None
    failure = None
    if error is not None:
        name = error.name if isinstance(error, RunnerError) else type(error).__name__
        failure = {"name": name, "message": str(error)}
    return End(trial=trial, is_stopped=False, failure=failure, job_id=None)
