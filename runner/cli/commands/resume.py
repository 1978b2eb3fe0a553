"""`python -m runner resume run=DIR [overrides]`: continue a run or a sweep in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from runner.base.console import LOGGER, show
from runner.base.errors import EXIT_DONE, ConfigError, OutputError, Problem, UsageError
from runner.base.stop import StopRequest
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_call
from runner.cli.commands.train import train_job_of_sweep
from runner.config.arguments import CommandLine, read_command_line
from runner.config.compose import compose
from runner.config.multirun import Multirun
from runner.config.saved import TypedCommand, load_saved
from runner.config.schema import Config
from runner.config.schema.calls.of_trained import ResumeCall
from runner.config.schema.checks.effects import changes, check_changes, effect_of
from runner.config.trust import WEIGHTS, as_override, is_typed, may_be_retyped, refuse_untyped
from runner.launch.preflight import preflight
from runner.run.run_folder import finished_epochs, is_waiting, read_record
from runner.tools.hooks import training_hooks
from runner.tools.sweep.sweep_folder import SweepFolder, is_sweep
from runner.training.attempt import Attempt, Training


def run(argv: list[str]) -> int:
    """Continue a run from its newest valid checkpoint, or train the missing trials of a sweep.

    Raises:
        CheckpointError: the folder is no run folder, or its data set has changed.
        ConfigError: an override is wrong, or changes the result of the run.
        OutputError: another process is working on the run.
    """
    with StopRequest() as stop:
        return _resume(argv, stop)


def _resume(argv: list[str], stop: StopRequest) -> int:
    line = read_command_line(argv)
    if line.is_multirun or line.flags:
        raise UsageError("resume takes KEY=VALUE, and --config-dir FOLDER for a sweep that was started with it")
    call, overrides = read_call("resume", ResumeCall, line.overrides)
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links(run_dir)
    if is_sweep(run_dir):
        return _resume_sweep(run_dir, overrides, line)
    if line.typed_folders:
        raise UsageError("--config-dir is for new runs and for sweeps; a run continues with its saved config")
    if is_waiting(run_dir):
        LOGGER.info("resumed     %s, which had not begun", run_dir)  # such as one whose job was cancelled in the queue
        attempt = Attempt(overrides=tuple(overrides), may_download=is_typed(WEIGHTS, overrides))
        _launch(run_dir, load_saved(run_dir, overrides), attempt, stop)
        return EXIT_DONE
    record = read_record(run_dir)
    saved, is_completed = load_saved(run_dir, only_reads=True), record["status"] == "completed"
    if is_completed and not _is_longer(saved, load_saved(run_dir, overrides, only_reads=True)):
        show(f"{run_dir} is already completed; its model is in {run_dir / 'model'}")
        return EXIT_DONE
    wanted = load_saved(run_dir, overrides)
    notes = check_changes(saved, wanted, finished_epochs=finished_epochs(run_dir), allow=call.resume.allow)
    attempt = Attempt(
        overrides=tuple(overrides),
        is_resumed=True,
        num_earlier=record["attempts"],
        notes=tuple(notes),
        may_change_data="data" in call.resume.allow,
        may_download=is_typed(WEIGHTS, overrides),
    )
    _launch(run_dir, wanted, attempt, stop)
    return EXIT_DONE


def _launch(run_dir: Path, config: Config, attempt: Attempt, stop: StopRequest) -> None:
    ready = preflight(config, run_dir, may_download=attempt.may_download)
    from runner.launch import launch  # noqa: PLC0415 - torch only after config and data are checked

    launch(ready, Training(attempt=attempt, hooks=training_hooks(config)), folder=run_dir, stop=stop)


def _resume_sweep(folder: Path, overrides: list[str], line: CommandLine) -> int:
    """Run the saved command of a sweep again, in the working folder it was typed in; only missing trials are trained.

    The folder may come from others: overrides by which its command reaches beyond the folder have to be typed again,
    and so have config folders, but for conf/ of the working folder that one is in.
    """
    problems = [
        Problem(
            key=override.partition("=")[0],
            message="to resume a sweep, type sweep.KEY=VALUE, and the parts of its command that have to be typed again",
        )
        for override in overrides
        if not override.lstrip("+").startswith("sweep.") and not may_be_retyped(override)
    ]
    if problems:
        raise ConfigError(problems)
    record = SweepFolder(folder).record()
    with _in_folder(record["cwd"], folder):
        before = read_command_line(record["argv"])
        changed = {_key(override) for override in (*overrides, "sweep.dir", "hydra.sweep.dir")}
        kept = [item for item in before.overrides if _key(item) not in changed]
        refuse_untyped(kept, [place for place in before.folders if place not in line.folders])
        flags = [f"--config-dir={place}" for place in line.typed_folders]
        # After the kept overrides, so that none of these can set another folder.
        here = [f"sweep.dir={folder}", as_override("hydra.sweep.dir", str(folder))]
        typed = TypedCommand.for_sweep([f"sweep.dir={folder}", *overrides], (*line.typed_folders, *before.folders))
        sweep = compose(["-m", *flags, *kept, *here, *overrides], typed)
        assert isinstance(sweep, Multirun), "-m asks for one"
        sweep.run(train_job_of_sweep)
    return EXIT_DONE


@contextlib.contextmanager
def _in_folder(cwd: str, sweep: Path) -> Iterator[None]:
    if not (Path(cwd).is_absolute() and Path(cwd).is_dir()):
        raise OutputError(f"{sweep} was started in {cwd!r}, which is no folder here; type its command again")
    with contextlib.chdir(cwd):
        yield


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _is_longer(saved: Config, wanted: Config) -> bool:
    changed = changes(saved.model_dump(mode="json"), wanted.model_dump(mode="json"))
    return any(effect_of(key).gives_more_to_do for key, _, _ in changed)
