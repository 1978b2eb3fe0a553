"""What `doctor` reports: one finding per topic, in words for people and in values for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import ProblemsError, RunnerError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    topic: str
    found: str
    """In words."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The same for scripts; the names contain the units."""
    error: RunnerError | None = None
    """Why the config can't run on this machine; None if it can."""
    advice: tuple[str, ...] = ()
    """What to do, in plain words."""

    @property
    def mark(self) -> str:
        """The first column: ok, note (there is advice) or no (there is an error)."""
        return "no" if self.error is not None else "note" if self.advice else "ok"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[RunnerError, ...]:
        """All different errors."""
        errors = (finding.error for finding in self.findings if finding.error is not None)
        return tuple({(error.name, str(error)): error for error in errors}.values())

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Rows of a table: mark, topic, what was found; below it the advice."""
        for finding in self.findings:
            text = finding.found if finding.error is None else f"{finding.error.name}: {finding.error}"
            yield finding.mark, finding.topic, text
            yield from (("", "", f"→ {advice}") for advice in finding.advice)

    def to_json(self) -> dict[str, Any]:
        """Values for JSON: can_run, errors, advice, and the findings by topic."""
        return {
            "can_run": not self.errors,
            "errors": [{"name": error.name, "message": str(error)} for error in self.errors],
            "advice": [advice for finding in self.findings for advice in finding.advice],
            "findings": {
                finding.topic: {"mark": finding.mark, "found": finding.found, **finding.values}
                for finding in self.findings
            },
        }


def error_findings(topic: str, error: RunnerError) -> list[Finding]:
    """A finding for each problem of an error."""
    if not isinstance(error, ProblemsError):
        return [Finding(topic=topic, found=str(error), error=error)]
    singles = [type(error)([problem]) for problem in error.problems]
    return [
        Finding(topic=topic if number == 1 else f"{topic} {number}", found=str(single), error=single)
        for number, single in enumerate(singles, 1)
    ]


def gigabytes(num_bytes: float) -> str:
    """Bytes in MB or GB, for messages."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"
