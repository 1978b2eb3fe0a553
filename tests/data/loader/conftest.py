"""Before loader processes are forked, garbage is collected: of all that the tests have imported, it takes long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.base.process import gc_frozen


@pytest.fixture(autouse=True)
def imports_are_no_garbage() -> Iterator[None]:
    """As in a training, which freezes what there is before it begins."""
    with gc_frozen():
        yield
