"""What comes from others is read, never run: hundreds of hostile inputs, each in a fork under a watch."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.client import Client, serving, told
from tests.hostile.families import FAMILIES
from tests.hostile.harness import GOOD
from tests.hostile.planted import PLANTED

NUM_INPUTS = int(os.environ.get("RUNNER_HOSTILE_INPUTS", "600"))
_AT_ONCE = 10
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches forks as Linux lets it")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as own:
        yield own


def _portions() -> Iterator[Any]:
    """Of each family what comes first belongs to `make test`."""
    for name, family in FAMILIES.items():
        count = -(-NUM_INPUTS * family.share // 100)
        for first in range(0, count, _AT_ONCE):
            marks = pytest.mark.long if first else ()
            yield pytest.param(name, first, min(first + _AT_ONCE, count), marks=marks)


@pytest.mark.timeout(_AT_ONCE * 70)
@pytest.mark.parametrize(("family", "first", "end"), list(_portions()))
def test_nothing_comes_of_it_but_an_answer(client, record_property, family, first, end):
    answers = {number: client.attempt(family, number) for number in range(first, end)}
    record_property("hostile", json.dumps([family, Counter(answer["outcome"] for answer in answers.values())]))
    bad = [told(family, number, answer) for number, answer in answers.items() if answer["outcome"] not in GOOD]
    assert not bad, "\n\n".join([f"{len(bad)} of {len(answers)} inputs", *bad])


@pytest.mark.parametrize(("number", "outcome"), list(enumerate(outcome for _, outcome, _ in PLANTED)))
def test_the_harness_catches_what_is_planted(client, number, outcome):
    answer = client.attempt("planted", number)
    assert answer["outcome"] == outcome, told("planted", number, answer)


def test_the_same_number_is_the_same_input():
    from tests.hostile.families import input_of, table_size

    for name in FAMILIES:
        for number in (0, table_size(name) + 7):
            one, same = input_of(name, number), input_of(name, number)
            assert (one.title, one.argv, one.env) == (same.title, same.argv, same.env)
