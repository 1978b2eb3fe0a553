"""Threads sleep while they wait where others compute, and the user's own settings stand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runner.base import wait_policy
from runner.base.wait_policy import (
    VARIABLE,
    brief_spinning,
    choose_wait_policy,
    described,
    fair_share_of_cores,
    num_computing_elsewhere,
)
from tests.conftest import ROOT, SMALL_NET, TINY


@pytest.fixture(autouse=True)
def _nobody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards, whatever is set meanwhile
        monkeypatch.delenv(name)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says what runs")
def test_busy_processes_are_counted():
    program = "print(flush=True)\nwhile True: pass"
    loops = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        assert (num_computing_elsewhere() or 0) >= 3
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [(2, 0, None), (2, 1, "PASSIVE"), (2, None, None), (64, 7, None), (64, 8, "PASSIVE")],
)
def test_threads_sleep_where_an_eighth_of_the_cores_is_taken(monkeypatch, cores, others, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(wait_policy, "num_computing_elsewhere", lambda: others)
    choose_wait_policy()
    assert os.environ.get(VARIABLE) == expected
    assert ("sleep while they wait" in (described() or "")) == (expected is not None)


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [(2, 0, 2), (2, 1, 1), (2, 2, 1), (2, None, 2), (1, 9, 1), (64, 7, 64), (64, 8, 56), (64, 64, 32)],
)
def test_cores_are_shared_with_all_that_compute(monkeypatch, cores, others, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(wait_policy, "num_computing_elsewhere", lambda: others)
    assert fair_share_of_cores(cores) == cores  # nobody computed at the start: this may be over in a moment
    monkeypatch.setenv(VARIABLE, "PASSIVE")
    assert fair_share_of_cores(cores) == expected


@pytest.mark.parametrize("name", [VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_the_users_own_setting_stands(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(wait_policy, "num_computing_elsewhere", lambda: pytest.fail("was asked"))
    choose_wait_policy()
    assert [os.environ.get(other) for other in (VARIABLE, name)][1] == "1"


def test_where_the_system_does_not_say_what_runs_nothing_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(wait_policy, "Path", lambda _: tmp_path / "no such file")
    assert num_computing_elsewhere() is None


def test_it_is_chosen_before_torch_is_imported(tmp_path):
    """By the commands that compute; `validate` starts no threads and asks nobody."""
    program = (
        "import sys, runner.base.wait_policy as policy\n"
        "from runner.cli import front_door\n"
        "policy.choose_wait_policy = lambda: print('asked', 'torch' in sys.modules)\n"
        "front_door.run(sys.argv[1:])\n"
    )
    for command, expected in ((), "asked False\n"), (("validate",), ""):
        arguments = [sys.executable, "-c", program, *command, "trainer.no_such=1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == expected, done.stderr
        assert "trainer.no_such" in done.stderr


def test_the_log_of_a_run_says_it(run_cli):
    done = run_cli(*TINY, *SMALL_NET, "trainer.max_steps=1", OMP_WAIT_POLICY="passive")
    assert "threads     sleep while they wait" in done.stdout


@pytest.mark.parametrize("name", [VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_of_a_worker_spin_for_a_moment_unless_the_user_has_chosen(name, monkeypatch):
    assert brief_spinning() == {"GOMP_SPINCOUNT": "10000"}
    monkeypatch.setenv(name, "5")
    assert brief_spinning() == {}
