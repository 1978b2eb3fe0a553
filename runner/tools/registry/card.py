"""The model card of a version: Markdown, with what is known of the model and headings for what only people know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from runner.base.untrusted import printable
from runner.tools.registry.versions import VersionRecord
from runner.tools.runs.past import describe_metric

_MOST_CLASSES = 50
_OBEYED_BY_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#!|&~$])")
_METRICS = ("top1", "top5", "loss", "expected_calibration_error")
_TO_FILL_IN = """## Intended use
*To be filled in: what the model is for, who uses it, and for what it must not be used.*

## Limits
*To be filled in: images on which it is known to fail, groups that the data lacks, what an error costs.*
"""


def write_card(record: VersionRecord, classes: Sequence[str], curves: Sequence[str]) -> str:
    """The model card of a version.

    Args:
        record: what the registry knows of it.
        classes: names in index order.
        curves: file names of pictures of its training, in its folder.
    """
    lineage = record.lineage
    changed = " with uncommitted changes" if lineage.git_dirty else ""
    facts = {
        "Architecture": record.architecture,
        "Classes": f"{record.num_classes:,}",
        "Run": f"{lineage.run}{f' ({lineage.name})' if lineage.name else ''}",
        "Commit": f"{lineage.git_commit}{changed}" if lineage.git_commit else "none: not in a git repository",
        "Trained": f"{lineage.start} to {lineage.end}",
        "Registered": record.registered,
        "SHA-256 of the weights": record.files["model/model.safetensors"].sha256,
    }
    parts = [
        f"# {_plain(record.name)}, version {record.version}",
        _table(("", ""), ((name, value) for name, value in facts.items())),
        "## Metrics",
        _table(("split", "images", "top-1", "top-5", "loss", "calibration error"), _metrics(record)),
        *(f"![{file.removesuffix('.svg')}]({file})" for file in curves),
        "## Data",
        f"{_plain(lineage.data or 'unknown')}, fingerprint {_plain(lineage.data_fingerprint or 'unknown')}.",
        f"Classes: {_classes(classes)}.",
        _TO_FILL_IN,
    ]
    return "\n\n".join(parts)


def _metrics(record: VersionRecord) -> Iterator[Sequence[str]]:
    for split, found in record.metrics.items():
        yield (split, _number(found.get("count")), *(_metric(name, found.get(name)) for name in _METRICS))


def _number(value: Any) -> str:  # noqa: ANN401 - from a file
    return f"{value:,}" if isinstance(value, int) else "–"


def _metric(name: str, value: Any) -> str:  # noqa: ANN401 - from a file
    if not isinstance(value, int | float):
        return "–"
    return f"{value:.2%}" if name == "expected_calibration_error" else describe_metric(f"val_{name}", value)


def _classes(classes: Sequence[str]) -> str:
    more = f" and {len(classes) - _MOST_CLASSES:,} more" if len(classes) > _MOST_CLASSES else ""
    return ", ".join(_plain(name) for name in classes[:_MOST_CLASSES]) + more


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return _OBEYED_BY_MARKDOWN.sub(r"\\\1", printable(text))
