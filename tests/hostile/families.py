"""All families, and the inputs of each in their order: its table, shuffled once and for all, then grown ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from tests.hostile import (
    archives,
    command_lines,
    experiments,
    images,
    lists,
    packages,
    planted,
    registries,
    run_folders,
    sweeps,
    weights,
)
from tests.hostile.place import Input


@dataclass(frozen=True)
class Family:
    """Inputs of one kind."""

    table: Callable[[], Iterator[Input]]
    grown: Callable[[random.Random], Input]
    share: int
    """Of 100 inputs."""


FAMILIES = {
    "command lines": Family(command_lines.table, command_lines.grown, 14),
    "environment": Family(command_lines.environment_table, command_lines.environment_grown, 4),
    "experiments": Family(experiments.table, experiments.grown, 17),
    "saved configs": Family(run_folders.saved_table, run_folders.saved_grown, 10),
    "records": Family(run_folders.records_table, run_folders.records_grown, 14),
    "packages": Family(packages.table, packages.grown, 8),
    "registries": Family(registries.table, registries.grown, 3),
    "links": Family(run_folders.links_table, run_folders.links_grown, 6),
    "sweeps": Family(sweeps.table, sweeps.grown, 5),
    "weights": Family(weights.table, weights.grown, 5),
    "archives": Family(archives.table, archives.grown, 4),
    "lists": Family(lists.table, lists.grown, 4),
    "images": Family(images.table, images.grown, 3),
    "names": Family(images.names_table, images.names_grown, 3),
    "planted": Family(planted.table, lambda _: next(planted.table()), 0),
}
assert sum(family.share for family in FAMILIES.values()) == 100


@cache
def _shuffled(name: str) -> list[Input]:
    items = list(FAMILIES[name].table())
    if FAMILIES[name].share:
        random.Random(name).shuffle(items)
    return items


def table_size(name: str) -> int:
    """How many inputs the table of a family has."""
    return len(_shuffled(name))


def input_of(name: str, number: int) -> Input:
    """The input of this number in a family; the same each time."""
    items = _shuffled(name)
    return items[number] if number < len(items) else FAMILIES[name].grown(random.Random(f"{name} {number}"))
