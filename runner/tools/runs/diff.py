"""What differs between two runs, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.schema.effects import changes
from runner.tools.runs.past import PastRun, read_small

# By dotted key: the value of the first run and that of the second; None where one has none.
Differences = dict[str, tuple[Any, Any]]
_SHOWN_DIGITS = 12


def differences(first: PastRun, second: PastRun) -> dict[str, Differences]:
    """Per section (config, code, data, environment, metrics) what differs; sections without differences are left out.

    Times, speeds and names of folders of the runs themselves are no differences.
    """
    sections = {
        "config": changes(first.config, second.config),
        "code": changes(_code(first), _code(second)),
        # What only one of them has recorded, such as counts in newer runs, is no difference.
        "data": (pair for pair in changes(data_of(first), data_of(second)) if None not in pair),
        "environment": changes(_environment(first), _environment(second)),
        "metrics": changes(_metrics(first), _metrics(second)),
    }
    found = {name: {key: (old, new) for key, old, new in pairs} for name, pairs in sections.items()}
    return {name: section for name, section in found.items() if section}


def data_of(run: PastRun) -> dict[str, Any]:
    """What identifies the data set of a run: fingerprint and counts of images, as far as the run has recorded them."""
    facts = dict(run.record.get("data") or {})
    # Of an older run, run.json tells how it began; resumed with resume.allow=[data] it goes on with others.
    return facts | {"fingerprint": run.state.get("data_fingerprint") or facts.get("fingerprint")}


def _code(run: PastRun) -> dict[str, Any]:
    git = run.record.get("git") or {}
    content = read_small(run.path / "source.patch")
    return {
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "source.patch": None if content is None else _summary(content),
    }


def _summary(patch: bytes) -> str:
    files = patch.count(b"\ndiff --git ") + patch.startswith(b"diff --git ")
    digest = hashlib.sha256(patch).hexdigest()[:_SHOWN_DIGITS]
    return f"{files} changed file{'' if files == 1 else 's'}, SHA-256 {digest}"


def _environment(run: PastRun) -> dict[str, Any]:
    record = run.record
    numerics = {
        key: value for key, value in (run.state.get("numerics") or {}).items() if key not in ("torch", "device")
    }
    return {
        **{key: record.get(key) for key in ("host", "device", "launcher", "world_size")},
        # Of torch with the build, such as +cu132, which the package metadata lacks.
        "packages": {**dict(_packages(run.path / "environment.txt")), **(record.get("versions") or {})},
        "numerics": numerics,
    }


def _packages(file: Path) -> Iterator[tuple[str, str]]:
    content = read_small(file) or b""
    for line in content.decode("utf-8", errors="replace").splitlines():
        name, _, version = line.partition("==")
        yield name, version


def _metrics(run: PastRun) -> dict[str, Any]:
    last = run.rows[-1] if run.rows else {}
    scores = ("count", "top1", "top5", "loss", "expected_calibration_error")
    return {
        "status": run.status,
        "best": run.record.get("best"),
        # The other values of a row depend on the clock.
        "last epoch": {key: value for key, value in last.items() if "second" not in key},
        "evaluation": {key: run.evaluation[key] for key in scores if key in run.evaluation} if run.evaluation else None,
        "test": _scores(run.record.get("test"), scores),
    }


def _scores(found: Mapping[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    return {key: found[key] for key in names if key in found} if found else None
