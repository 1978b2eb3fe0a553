"""`python -m runner runs tag run=DIR a=b ~c [name=… group=… notes=…]`: change how a run is named, in its run.json."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE, ConfigError, Problem
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_own
from runner.config.hydra_errors import COMMAND_LINE
from runner.config.schema.calls.of_runs import RunsTagCall
from runner.run.run_folder import read_record, rename_run


def run(argv: list[str]) -> int:
    """Change name, group, notes and tags of a run, also while it goes on.

    Raises:
        CheckpointError: the folder is no run folder.
        ConfigError: a value is wrong, a tag that is to be removed is not there, or nothing is to be changed.
        OutputError: the folder can't be written.
    """
    removed = [argument[1:] for argument in argv if argument.startswith("~")]
    call = read_own("runs tag", RunsTagCall, [_of_tags(argument) for argument in argv if not argument.startswith("~")])
    run_dir = typed_path(call.run, "run").resolve()
    refuse_outside_links(run_dir)
    absent = set(removed) - set(read_record(run_dir).get("tags", {}))
    names = {key: value for key in ("name", "group", "notes") if (value := getattr(call, key)) is not None}
    if absent or not (removed or call.tags or names):
        message = f"the run has no tag {min(absent)!r}" if absent else "needs what to change: TAG=VALUE, ~TAG, name=…"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)])
    rename_run(run_dir, tags=call.tags, removed=removed, **names)
    record = read_record(run_dir)
    for key in ("name", "group", "notes"):
        if record.get(key) is not None:
            show(f"{key:<6}  {record[key]}")
    for tag, value in sorted(record["tags"].items()):
        show(f"tag     {tag} = {value}")
    return EXIT_DONE


def _of_tags(argument: str) -> str:
    """An argument with the full key of the call: whatever is no key of the command is a tag."""
    key = argument.partition("=")[0]
    return argument if key in RunsTagCall.model_fields or "." in key or "=" not in argument else f"tags.{argument}"
