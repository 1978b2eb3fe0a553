"""Command lines as the pages show them, judged as the commands do."""

from __future__ import annotations

import shlex

from runner.cli.call import read_call, read_own
from runner.cli.front_door import split_command
from runner.config import CONF_DIR
from runner.config.reference.keys import read_groups
from runner.config.schema.calls import CALLS, TAKES_EXPERIMENT, TAKES_NOTHING_ELSE
from tests.composed import compose_jobs

KEYS = {key.name for group in read_groups() for variant in group.variants for key in variant.keys}
GROUPS = {group.name for group in read_groups() if group.name}


def judge(line: str) -> None:
    """Raise what the command would raise about what was typed; of a sweep the first value of each key is looked at."""
    words = shlex.split(line.removeprefix("python -m runner"))
    if words[:1] == ["-m"]:
        words = [word.partition(",")[0] for word in words[1:]]
    for word in [word for word in words if word.startswith("hydra/")]:
        group, _, option = word.partition("=")
        assert (CONF_DIR / group / f"{option}.yaml").is_file(), word
        words.remove(word)
    command, arguments = split_command(words)
    if command in TAKES_NOTHING_ELSE:
        read_own(command, CALLS[command], arguments)
        return
    if command in CALLS:
        arguments = read_call(command, CALLS[command], arguments)[1]
    if command not in CALLS or command in TAKES_EXPERIMENT:
        compose_jobs(arguments, lambda job: None)
    else:
        assert {argument.partition("=")[0] for argument in arguments} <= KEYS | GROUPS
