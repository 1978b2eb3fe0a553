"""Python's search for cyclic garbage, kept away from where there is none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage for a while: for imports and the like, which make many objects and drop next to none.

    Each search walks over what was made so far, which was a fifth of the time that `import torch` took. What was
    dropped meanwhile is found by the first search afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Let searches pass over all that is there by now: modules and the like, which stay.

    With torch imported a full search takes a quarter of a second, and drawing a picture sets one off. Processes that
    are forked meanwhile go on sharing that memory, which a search would write to. To be used where there is no garbage
    yet: what there is can't be found before the end.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def collection_over() -> None:
    """Search for garbage no more: for a process that has done its work, and whose memory the system takes back.

    Python would search all of it several times on its way out, which with torch imported takes a second. As with
    :func:`runner.base.leave.leave`, what only such a search would find is not finalized, modules and what they hold
    included; what was registered with `atexit` is still called.
    """
    gc.disable()
    gc.freeze()
