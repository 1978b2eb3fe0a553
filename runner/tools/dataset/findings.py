"""From what is known of each image to what is wrong with the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.data.source import ImageSource
from runner.tools.dataset.examine import DIGEST_BYTES, Facts, Task

# Shorter sides below this many pixels, or below this share of the median, show hardly anything.
MIN_SIDE = 8
MIN_SHARE_OF_MEDIAN = 1 / 8
# Longer side to shorter side.
MAX_ASPECT_RATIO = 5.0
# Later ones are kept: an image that is in the test split as well is to leave the training split.
_SPLIT_ORDER = ("train", "val", "test")

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """The facts of all images in columns, some 40 bytes each, so that millions fit into memory.

    Images are numbered over all splits, one split after another.
    """

    splits: tuple[str, ...]
    starts: Ids
    """Number of the first image of each split, and of all images; shape (number of splits + 1,)."""
    labels: Ids
    digests: npt.NDArray[np.uint64]
    """Shape (N, 2)."""
    widths: Ids
    heights: Ids
    is_read: npt.NDArray[np.bool_]
    problems: Mapping[int, str]
    """Why an image can't be read, by its number."""
    modes: Counter[str]
    num_rotated: int

    def split_of(self, image: int) -> Task:
        """The split of an image, and its number in it."""
        position = int(np.searchsorted(self.starts, image, side="right")) - 1
        return Task(self.splits[position], image - int(self.starts[position]))


@dataclass(frozen=True)
class Duplicates:
    """Images of the same content."""

    images: tuple[int, ...]
    splits: tuple[str, ...]
    """In which splits they are."""
    labels: tuple[int, ...]
    """The classes they are given; more than one contradict each other."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is wrong."""

    leaks: tuple[Duplicates, ...]
    """The same content in several splits: evaluation would be on what was trained on."""
    contradictions: tuple[Duplicates, ...]
    """The same content with different labels; may be leaks too."""
    repeats: tuple[Duplicates, ...]
    """The same content with the same label, several times in one split."""
    tiny: Ids
    elongated: Ids


def collect(sources: Mapping[str, ImageSource], results: Iterable[tuple[Task, Facts]]) -> Table:
    """Put what is known of each image into columns.

    Args:
        sources: by split.
        results: of all images of all splits, in any order.
    """
    splits = tuple(name for name in _SPLIT_ORDER if name in sources)
    starts = np.cumsum([0, *(len(sources[name]) for name in splits)], dtype=np.int64)
    first = dict(zip(splits, starts.tolist(), strict=False))
    total = int(starts[-1])
    digests = np.zeros((total, DIGEST_BYTES // 8), np.uint64)
    widths, heights = np.zeros(total, np.int64), np.zeros(total, np.int64)
    problems: dict[int, str] = {}
    modes: Counter[str] = Counter()
    num_rotated = 0
    for task, facts in results:
        number = first[task.split] + task.image
        if facts.problem is not None:
            problems[number] = facts.problem
            continue
        digests[number] = np.frombuffer(facts.digest, np.uint64)
        widths[number], heights[number] = facts.width, facts.height
        modes[facts.mode] += 1
        num_rotated += facts.is_rotated
    return Table(
        splits=splits,
        starts=starts,
        labels=np.concatenate([sources[name].labels for name in splits]),
        digests=digests,
        widths=widths,
        heights=heights,
        is_read=widths > 0,
        problems=dict(sorted(problems.items())),
        modes=modes,
        num_rotated=num_rotated,
    )


def judge(table: Table) -> Findings:
    """Find what is wrong."""
    groups = [_described(table, images) for images in _same_content(table)]
    return Findings(
        leaks=tuple(group for group in groups if len(group.splits) > 1),
        contradictions=tuple(group for group in groups if len(group.labels) > 1),
        repeats=tuple(group for group in groups if len(group.splits) == 1 and len(group.labels) == 1),
        tiny=_tiny(table),
        elongated=_elongated(table),
    )


def _same_content(table: Table) -> list[Ids]:
    """The numbers of the images of each content that is there more than once, in the order of the first of them."""
    read = np.flatnonzero(table.is_read)
    digests = table.digests[read]
    order = np.lexsort((read, digests[:, 1], digests[:, 0]))
    in_order = digests[order]
    begins = np.flatnonzero(np.append(True, (in_order[1:] != in_order[:-1]).any(axis=1))) if len(read) else read
    lengths = np.diff(np.append(begins, len(read)))
    groups = [
        read[order[begin : begin + length]]
        for begin, length in zip(begins[lengths > 1], lengths[lengths > 1], strict=True)
    ]
    return sorted(groups, key=lambda images: int(images[0]))


def _described(table: Table, images: Ids) -> Duplicates:
    numbers = tuple(images.tolist())
    splits = {table.split_of(image).split for image in numbers}
    labels = tuple(np.unique(table.labels[images]).tolist())
    return Duplicates(numbers, tuple(name for name in table.splits if name in splits), labels)


def _tiny(table: Table) -> Ids:
    shorter = np.minimum(table.widths, table.heights)
    if not table.is_read.any():
        return np.empty(0, np.int64)
    limit = max(MIN_SIDE, float(np.median(shorter[table.is_read])) * MIN_SHARE_OF_MEDIAN)
    return np.flatnonzero(table.is_read & (shorter < limit))


def _elongated(table: Table) -> Ids:
    shorter, longer = np.minimum(table.widths, table.heights), np.maximum(table.widths, table.heights)
    return np.flatnonzero(table.is_read & (longer > MAX_ASPECT_RATIO * shorter))


def to_quarantine(table: Table, findings: Findings) -> dict[int, str]:
    """Which images had better not be used, by number, each with its reason.

    Those that can't be read; those whose labels contradict each other, all of them; of those that are in several
    splits the ones outside the last of these splits, so that a leak leaves training and the measure stays. Repeats
    within a split and odd sizes are left to people.
    """
    reasons = {image: f"unreadable: {problem}" for image, problem in table.problems.items()}
    for group in findings.contradictions:
        reasons |= dict.fromkeys(group.images, "the same content has different labels")
    for group in findings.leaks:
        last = group.splits[-1]
        for image in group.images:
            if table.split_of(image).split != last:
                reasons.setdefault(image, f"the same content is in {last}")
    return dict(sorted(reasons.items()))


def counts_per_class(table: Table, num_classes: int) -> dict[str, list[int]]:
    """How many images each class has, by split; unreadable ones too, because training is given them."""
    pieces: Sequence[Ids] = np.split(table.labels, table.starts[1:-1])
    return {
        name: np.bincount(piece, minlength=num_classes).tolist()
        for name, piece in zip(table.splits, pieces, strict=True)
    }
