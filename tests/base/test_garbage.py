"""Collection is paused for as long as asked, and goes on however that ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from runner.base.process import collection_over, collection_paused, heap_set_aside


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


def test_garbage_stays_while_paused_and_goes_afterwards() -> None:
    with collection_paused():
        dropped = weakref.ref(_Node())
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]  # type: ignore[var-annotated]
        assert dropped() is not None
    kept += [[] for _ in range(gc.get_threshold()[0] + 1)]
    gc.collect()
    assert gc.isenabled()
    assert dropped() is None


def test_goes_on_after_an_error() -> None:
    with pytest.raises(ImportError), collection_paused():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_may_be_nested() -> None:
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_there_is_set_aside_until_the_end() -> None:
    gc.disable()  # a search by itself, just here, would find it
    old = weakref.ref(_Node())
    with heap_set_aside():
        new = weakref.ref(_Node())
        gc.collect()
        assert old() is not None
        assert new() is None
    gc.collect()
    assert old() is None
    assert gc.get_freeze_count() == 0


def test_nothing_stays_aside_after_an_error() -> None:
    with pytest.raises(ValueError, match="bad"), heap_set_aside():
        raise ValueError("bad")
    assert gc.get_freeze_count() == 0


def test_once_over_nothing_is_searched() -> None:
    kept = _Node()
    collection_over()
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(known is kept for known in gc.get_objects()), "what the search at the end of Python walks over"
