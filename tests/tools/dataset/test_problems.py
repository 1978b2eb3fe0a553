from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.tools.dataset.problems import ImageFacts, ImageRef, build_table, find_problems, reasons_to_quarantine


@dataclass(frozen=True)
class Labelled:
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def facts(content: str, size: tuple[int, int] = (100, 80), problem: str | None = None) -> ImageFacts:
    return ImageFacts(problem, content.encode().ljust(16, b"\0"), *size, "RGB", is_rotated=False)


def table_of(splits: dict[str, list[tuple[int, ImageFacts]]]):
    sources = {name: Labelled(np.array([label for label, _ in images])) for name, images in splits.items()}
    results = [
        (ImageRef(name, number), one) for name, images in splits.items() for number, (_, one) in enumerate(images)
    ]
    return build_table(sources, reversed(results))


def test_the_same_content_is_a_leak_a_contradiction_or_a_repeat():
    table = table_of(
        {
            "train": [(0, facts("a")), (0, facts("b")), (1, facts("c")), (0, facts("d")), (0, facts("d"))],
            "val": [(0, facts("a")), (0, facts("c")), (1, facts("e"))],
            "test": [(0, facts("a")), (1, facts("f"))],
        }
    )
    findings = find_problems(table)
    assert [(group.images, group.splits) for group in findings.leaks] == [
        ((0, 5, 8), ("train", "val", "test")),
        ((2, 6), ("train", "val")),
    ]
    assert [group.images for group in findings.contradictions] == [(2, 6)]
    assert [group.images for group in findings.repeats] == [(3, 4)]
    reasons = reasons_to_quarantine(table, findings)
    # The copy in the last split stays; of a contradiction none; repeats stay.
    assert sorted(reasons) == [0, 2, 5, 6]
    assert reasons[0] == "the same content is in test"
    assert reasons[6] == "the same content has different labels"


def test_unreadable_images_are_no_duplicates_and_are_quarantined():
    broken = facts("", size=(0, 0), problem="cut off")
    table = table_of({"train": [(0, broken), (0, broken), (1, facts("x"))]})
    findings = find_problems(table)
    assert (findings.leaks, findings.repeats, findings.tiny.tolist()) == ((), (), [])
    assert reasons_to_quarantine(table, findings) == dict.fromkeys((0, 1), "unreadable: cut off")


def test_all_unreadable():
    table = table_of({"train": [(0, facts("", size=(0, 0), problem="cut off"))]})
    assert find_problems(table).tiny.tolist() == []


def test_odd_sizes_are_relative_to_the_median():
    usual = [(0, facts(f"u{number}", (640, 480))) for number in range(9)]
    table = table_of(
        {"train": [*usual, (0, facts("a", (640, 50))), (0, facts("b", (59, 60))), (1, facts("c", (4, 4)))]}
    )
    findings = find_problems(table)
    assert findings.elongated.tolist() == [9]
    assert findings.tiny.tolist() == [9, 10, 11]
    # Where all are small, as digits are, small is usual.
    small = table_of({"train": [(0, facts(f"s{number}", (8, 8))) for number in range(4)]})
    assert find_problems(small).tiny.tolist() == []
