from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.tools.dataset.examine import Facts, Task
from runner.tools.dataset.findings import collect, judge, to_quarantine


@dataclass(frozen=True)
class Labelled:
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def facts(content: str, size: tuple[int, int] = (100, 80), problem: str | None = None) -> Facts:
    return Facts(problem, content.encode().ljust(16, b"\0"), *size, "RGB", is_rotated=False)


def table_of(splits: dict[str, list[tuple[int, Facts]]]):
    sources = {name: Labelled(np.array([label for label, _ in images])) for name, images in splits.items()}
    results = [(Task(name, number), one) for name, images in splits.items() for number, (_, one) in enumerate(images)]
    return collect(sources, reversed(results))


def test_the_same_content_is_a_leak_a_contradiction_or_a_repeat():
    table = table_of(
        {
            "train": [(0, facts("a")), (0, facts("b")), (1, facts("c")), (0, facts("d")), (0, facts("d"))],
            "val": [(0, facts("a")), (0, facts("c")), (1, facts("e"))],
            "test": [(0, facts("a")), (1, facts("f"))],
        }
    )
    findings = judge(table)
    assert [(group.images, group.splits) for group in findings.leaks] == [
        ((0, 5, 8), ("train", "val", "test")),
        ((2, 6), ("train", "val")),
    ]
    assert [group.images for group in findings.contradictions] == [(2, 6)]
    assert [group.images for group in findings.repeats] == [(3, 4)]
    reasons = to_quarantine(table, findings)
    # The copy in the last split stays; of a contradiction none; repeats stay.
    assert sorted(reasons) == [0, 2, 5, 6]
    assert reasons[0] == "the same content is in test"
    assert reasons[6] == "the same content has different labels"


def test_what_can_not_be_read_is_no_duplicate_and_is_quarantined():
    broken = facts("", size=(0, 0), problem="cut off")
    table = table_of({"train": [(0, broken), (0, broken), (1, facts("x"))]})
    findings = judge(table)
    assert (findings.leaks, findings.repeats, findings.tiny.tolist()) == ((), (), [])
    assert to_quarantine(table, findings) == dict.fromkeys((0, 1), "unreadable: cut off")


def test_all_unreadable():
    table = table_of({"train": [(0, facts("", size=(0, 0), problem="cut off"))]})
    assert judge(table).tiny.tolist() == []


def test_odd_sizes_are_told_by_what_is_usual():
    usual = [(0, facts(f"u{number}", (640, 480))) for number in range(9)]
    table = table_of(
        {"train": [*usual, (0, facts("a", (640, 50))), (0, facts("b", (59, 60))), (1, facts("c", (4, 4)))]}
    )
    findings = judge(table)
    assert findings.elongated.tolist() == [9]
    assert findings.tiny.tolist() == [9, 10, 11]
    # Where all are small, as digits are, small is usual.
    small = table_of({"train": [(0, facts(f"s{number}", (8, 8))) for number in range(4)]})
    assert judge(small).tiny.tolist() == []
