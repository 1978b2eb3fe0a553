from __future__ import annotations

import os
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from runner.data.cache import memory_budget as room
from runner.data.cache.memory_budget import MemoryBudgetError, folder_unasked, folder_with_room, leaves_enough

Usage = namedtuple("Usage", "total used free")
MIB = 2**20


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets the free bytes of memory, of the folder in memory, and of the temporary one."""

    def has(memory: int | None, shared: int, on_disk: int = 0) -> None:
        free = {room._SHARED: shared, Path(tempfile.gettempdir()): on_disk}
        monkeypatch.setattr(room, "available_memory", lambda: memory)
        monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: Usage(10**12, 0, free[folder]))

    return has


def test_little_memory_takes_the_disk(machine) -> None:
    machine(10 * MIB, 100 * MIB, 100 * MIB)
    assert folder_with_room(7 * MIB, 0) == room._SHARED
    assert folder_with_room(9 * MIB, 0) == Path(tempfile.gettempdir())
    assert folder_with_room(4 * MIB, 5 * MIB) == Path(tempfile.gettempdir()), "images of evaluation take memory too"
    machine(None, 3 * MIB, 100 * MIB)
    assert folder_with_room(7 * MIB, 0) == Path(tempfile.gettempdir())


def test_too_little_room_is_told_with_all_numbers(machine) -> None:
    machine(3 * 2**30, 64 * MIB, 2 * MIB)
    with pytest.raises(
        MemoryBudgetError, match=r"need about 70 MiB; free are 3\.0 GiB of memory, 64 MiB in /dev/shm and 2 MiB in"
    ):
        folder_with_room(70 * MIB, 0)
    machine(100 * MIB, 64 * MIB, 64 * MIB)
    with pytest.raises(
        MemoryBudgetError, match="the images of evaluation take 81 MiB after their transforms, and only 100 MiB"
    ):
        folder_with_room(1, 81 * MIB)


def test_unasked_they_are_a_small_part_of_what_is_free(machine) -> None:
    machine(80 * MIB, 40 * MIB)
    assert folder_unasked(10 * MIB) == room._SHARED
    machine(79 * MIB, 40 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"up to 10 MiB, more than an eighth of the free memory \(79 MiB\)"):
        folder_unasked(10 * MIB)
    machine(None, 39 * MIB)
    with pytest.raises(
        MemoryBudgetError, match=r"up to 10 MiB, more than a quarter of what is free in /dev/shm \(39 MiB\)"
    ):
        folder_unasked(10 * MIB)


def test_other_systems_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.sys, "platform", "darwin")
    for refuse in (lambda: folder_unasked(1), lambda: folder_with_room(1, 0)):
        with pytest.raises(MemoryBudgetError, match="only Linux"):
            refuse()


@pytest.mark.parametrize(
    ("share_of_memory", "share_of_folder", "is_enough"),
    [(0.25, 0.5, True), (0.24, 0.9, False), (0.9, 0.49, False), (None, 0.5, True)],
)
def test_others_keep_their_part(
    monkeypatch: pytest.MonkeyPatch, share_of_memory: float | None, share_of_folder: float, is_enough: bool
) -> None:
    status = namedtuple("status", "f_bavail f_blocks")(share_of_folder * 1000, 1000)
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    monkeypatch.setattr(room, "free_share_of_memory", lambda: share_of_memory)
    assert leaves_enough(3) is is_enough
