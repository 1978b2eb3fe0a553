"""Where there is room for decoded images, and for how many."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from runner.data.cache.memory import available_memory, free_share_of_memory, shown_bytes

_SHARED = Path("/dev/shm")
# Of what is free, where it is asked for: others need some too.
_USABLE = 0.8
# Where nobody asked: other trials of a sweep, and other users, look at the same free memory at the same time.
_USABLE_OF_MEMORY_UNASKED = 1 / 8
# Loader processes hand over their batches there.
_USABLE_OF_SHARED_UNASKED = 1 / 4
# Shares that stay free, where nobody asked, whatever was there at the start.
_MEMORY_LEFT = 1 / 4
_SHARED_LEFT = 1 / 2


class MemoryBudgetError(Exception):
    """Why images are not kept; the reason alone, for a message."""


def folder_with_room(needed: int, evaluation_bytes: int) -> Path:
    """A folder in memory, or else one on the disk, whose files the system keeps in memory as far as there is room.

    Args:
        needed: bytes of decoded training images.
        evaluation_bytes: that the processes of this machine will take for the images of evaluation.

    Raises:
        MemoryBudgetError: there is too little of both, or the system can't share memory.
    """
    _refuse_other_systems()
    memory, temporary = available_memory(), Path(tempfile.gettempdir())
    if memory is not None and evaluation_bytes > memory * _USABLE:
        raise MemoryBudgetError(
            f"the images of evaluation take {shown_bytes(evaluation_bytes)} after their transforms, and only "
            f"{shown_bytes(memory)} of memory are free"
        )
    fits_memory = memory is None or needed + evaluation_bytes < memory * _USABLE
    shared = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    if fits_memory and needed < shared * _USABLE:
        return _SHARED
    on_disk = shutil.disk_usage(temporary).free
    if needed < on_disk * _USABLE:
        return temporary
    of_memory = "" if memory is None else f"{shown_bytes(memory)} of memory, "
    raise MemoryBudgetError(
        f"the decoded training images need about {shown_bytes(needed)}; free are {of_memory}{shown_bytes(shared)} in "
        f"{_SHARED} and {shown_bytes(on_disk)} in {temporary}"
    )


def folder_unasked(needed: int) -> Path:
    """The folder in memory, where so many bytes are a small part of what is free.

    Raises:
        MemoryBudgetError: they are not.
    """
    _refuse_other_systems()
    memory = available_memory()
    if memory is not None and needed > memory * _USABLE_OF_MEMORY_UNASKED:
        raise MemoryBudgetError(
            f"decoded they take up to {shown_bytes(needed)}, more than an eighth of the free memory "
            f"({shown_bytes(memory)})"
        )
    shared = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    if needed > shared * _USABLE_OF_SHARED_UNASKED:
        raise MemoryBudgetError(
            f"decoded they take up to {shown_bytes(needed)}, more than a quarter of what is free in {_SHARED} "
            f"({shown_bytes(shared)})"
        )
    return _SHARED


def leaves_enough(descriptor: int) -> bool:
    """Whether a quarter of the memory, and half of a file's file system, are still free."""
    file_system = os.fstatvfs(descriptor)
    share = free_share_of_memory()
    return file_system.f_bavail >= file_system.f_blocks * _SHARED_LEFT and (share is None or share >= _MEMORY_LEFT)


def _refuse_other_systems() -> None:
    if sys.platform != "linux":
        raise MemoryBudgetError("only Linux can share memory in this way")
