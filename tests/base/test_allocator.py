"""Memory that a step has freed stays for the next one, and goes back at the end; counted in pages."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

import runner
from runner.base.process import freed_memory_kept
from runner.trainer.loop import Trainer

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


def test_a_training_keeps_memory_and_hands_it_back(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
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
