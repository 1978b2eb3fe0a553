"""Real processes that stall, or whose parent is another one."""

from __future__ import annotations

import subprocess
import sys

import pytest

WATCHED = """
import os, time
from runner.dist.watchdog import Watchdog, die_with_parent

watchdog = Watchdog(
    parent={parent},
    stall_seconds={stall_seconds},
    on_stall=lambda seconds: print("stalled" if seconds > 0.1 else "too early", flush=True),
)
with watchdog.running():
    {work}
print("done")
"""


def watched(parent: str, stall_seconds: float | None, work: str) -> subprocess.CompletedProcess[str]:
    code = WATCHED.format(parent=parent, stall_seconds=stall_seconds, work=work)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_process_without_heartbeats_ends_with_its_stacks_in_the_log():
    ended = watched("os.getppid()", 0.1, "time.sleep(3600)")
    assert (ended.returncode, ended.stdout) == (1, "stalled\n")
    assert "most recent call first" in ended.stderr


def test_a_process_without_its_parent_is_killed():
    ended = watched("os.getppid() + 1", None, "time.sleep(3600)")
    assert (ended.returncode, ended.stdout) == (137, "")


def test_a_process_that_has_ended_its_block_is_not_watched_any_more():
    ended = watched("os.getppid()", 3600, "watchdog.heartbeat()")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(("parent", "code"), [("os.getppid()", 0), ("os.getppid() + 1", 137)])
def test_a_process_dies_with_its_parent_even_if_that_died_before(parent, code):
    script = f"import os; from runner.dist.watchdog import die_with_parent; die_with_parent({parent})"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == code
