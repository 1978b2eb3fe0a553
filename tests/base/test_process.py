"""The allocator keeps memory between steps, garbage collection pauses and resumes, and processes exit completely."""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

import runner
from runner.base.process import freed_memory_kept, gc_frozen, gc_paused
from runner.trainer.loop import Trainer
from tests.base.exiting import leave_an_object
from tests.conftest import ROOT

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")

# Blocks as the activations of a small model have them, 96 MB in all; each page is written to.
_PROGRAM = """
import ctypes, resource, sys
from contextlib import nullcontext
from pathlib import Path
from runner.base.process import freed_memory_kept

BYTES = 4 << 20
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def step():
    blocks = [library.malloc(BYTES) for _ in range(24)]
    for block in blocks:
        ctypes.memset(block, 1, BYTES)
    while blocks:
        library.free(blocks.pop())

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

with freed_memory_kept() if sys.argv[1] == "kept" else nullcontext():
    before_all = resident()
    for _ in range(3):
        step()
    before = faults()
    for _ in range(10):
        step()
    print((faults() - before) / 10)
print(resident() - before_all)
"""


def _pages(kind: str, **variables: str) -> tuple[float, int]:
    """New pages per step, and those that are still there afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | variables
    command = [sys.executable, "-c", _PROGRAM, kind]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    per_step, left = output.split()
    return float(per_step), int(left)


@glibc_only
def test_a_step_takes_the_memory_of_the_one_before_it() -> None:
    pages_of_a_step = (24 << 22) // resource.getpagesize()
    assert _pages("default")[0] > pages_of_a_step / 2, "glibc does by itself what this is for"
    per_step, left = _pages("kept")
    assert per_step < pages_of_a_step / 50
    assert left < pages_of_a_step / 4


@glibc_only
@pytest.mark.parametrize(
    "variables", [{"MALLOC_TOP_PAD_": "4096"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_settings_of_the_user_stand(variables: dict[str, str]) -> None:
    pages_of_a_step = (24 << 22) // resource.getpagesize()
    assert _pages("kept", **variables)[0] > pages_of_a_step / 2


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.base.process.ctypes.CDLL", lambda _: object())
    with freed_memory_kept():
        pass


def test_a_training_keeps_freed_memory_and_returns_it_at_the_end(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Library:
        def mallopt(self, *_: int) -> None:
            calls.append("mallopt")

        def malloc_trim(self, _: int) -> None:
            calls.append("malloc_trim")

    train = Trainer.fit
    monkeypatch.setattr("runner.base.process._glibc", Library)
    monkeypatch.setattr("runner.base.process._is_set_by_user", lambda: False)
    monkeypatch.setattr("runner.trainer.loop.Trainer.fit", lambda trainer: (calls.append("fit"), train(trainer)))
    runner.fit(runner.load_config(tiny("trainer.epochs=1")))
    assert calls == ["mallopt", "mallopt", "fit", "mallopt", "malloc_trim"]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()
    gc.unfreeze()


class _Node:
    """Refers to itself, so that only a search finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_after_the_pause_only() -> None:
    with gc_paused():
        dropped = weakref.ref(_Node())
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]  # type: ignore[var-annotated]
        assert dropped() is not None
    kept += [[] for _ in range(gc.get_threshold()[0] + 1)]
    gc.collect()
    assert gc.isenabled()
    assert dropped() is None


def test_collection_is_enabled_again_after_an_error() -> None:
    with pytest.raises(ImportError), gc_paused():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_collection_stays_disabled_where_it_was_disabled() -> None:
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()


def test_pauses_may_be_nested() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_existing_objects_are_frozen_until_the_end_of_the_block() -> None:
    gc.disable()  # a search by itself, just here, would find it
    old = weakref.ref(_Node())
    with gc_frozen():
        new = weakref.ref(_Node())
        gc.collect()
        assert old() is not None
        assert new() is None
    gc.collect()
    assert old() is None
    assert gc.get_freeze_count() == 0


def test_objects_are_unfrozen_after_an_error() -> None:
    with pytest.raises(ValueError, match="bad"), gc_frozen():
        raise ValueError("bad")
    assert gc.get_freeze_count() == 0


PROGRAM = """
import atexit, sys, threading, time
from runner.base.process import exit_without_cleanup

class Kept:
    def __del__(self):
        print("freed")

kept = Kept()
kept.itself = kept
atexit.register(print, "registered first, called last")
atexit.register(print, "registered last, called first")
has_begun = threading.Event()

def work():
    has_begun.wait()
    print("thread")

threading.Thread(target=work).start()
sys.stdout.write("unflushed\\n")
has_begun.set()
exit_without_cleanup(75)
"""


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, **more
    )  # type: ignore[call-overload,no-any-return]


def test_threads_exit_functions_and_output_are_waited_for_and_objects_are_not():
    done = run("-c", PROGRAM)
    lines = done.stdout.splitlines()
    assert done.returncode == 75, done.stderr
    assert sorted(lines[:2]) == ["thread", "unflushed"]
    assert lines[2:] == ["registered last, called first", "registered first, called last"]


@pytest.mark.parametrize("watcher", ["cProfile", "trace"])
def test_a_profiler_sees_a_normal_exit(watcher, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["-o", str(tmp_path / "profile")] if watcher == "cProfile" else ["--count", f"--coverdir={tmp_path}"]
    done = run("-m", watcher, *options, str(program), env={"PYTHONPATH": str(ROOT)})
    assert "freed" in done.stdout
    assert len(list(tmp_path.iterdir())) > 1, "what the watcher writes at its end"


def test_the_command_line_exits_with_its_exit_code():
    assert run("-m", "runner", "--version").stdout.startswith("runner ")
    assert run("-m", "runner", "trainer.epchos=5").returncode == 2


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_closed_pipe_is_no_error(is_buffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "--help"], cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.close(writer)
        assert process.stderr is not None
        told = process.stderr.read()
    assert process.returncode == 141
    assert told == b""


def test_a_training_continues_when_the_pipe_of_its_messages_is_closed(tiny):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "runner", *tiny("trainer.epochs=1")]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_closed_stdout_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m runner validate >&- 2>&-"], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_multiprocessing_target_exits_without_cleanup_after_success_only(fails, capfd):
    process = multiprocessing.get_context("spawn").Process(target=leave_an_object, args=(fails,))
    process.start()
    process.join()  # pytest ends a test that hangs
    out, err = capfd.readouterr()
    assert process.exitcode == int(fails)
    assert "exit function" in out
    assert ("freed" in out, "ValueError: bad" in err) == (fails, fails)
