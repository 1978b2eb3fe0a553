from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path

import pytest

import runner
from runner.trainer.loop import Flags, Trainer

# From the least to the most urgent one.
FLAGS = [
    Flags(None, 0, saves=False),
    Flags(None, 0, saves=True),
    Flags(None, 2, saves=False),
    Flags(None, 15, saves=True),
    Flags(10**9, 0, saves=False),
    Flags(7, 0, saves=False),
    Flags(7, 0, saves=True),
    Flags(1, 127, saves=False),
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_number_gives_the_values_back(flags: Flags) -> None:
    number = flags.to_number()
    assert 0 <= number < 2**63
    assert Flags.from_number(number) == flags


def test_the_most_urgent_wins() -> None:
    for less, more in itertools.pairwise(FLAGS):
        assert Flags.from_number(max(less.to_number(), more.to_number())) == more


def test_a_trainer_is_made_of_a_handful_of_parts():
    parts = list(inspect.signature(Trainer).parameters)
    assert parts == ["config", "state", "images", "placement", "writer", "teacher", "recorder", "pruner"]


def test_nothing_outside_writes_into_a_trainer():
    for path in Path(runner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                written = ast.unparse(target) if isinstance(target, ast.Attribute) else ""
                assert "trainer." not in written, f"{path}: {written} = …"
