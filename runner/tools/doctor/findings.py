"""What the doctor says: one finding per topic, in words for people and in values for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import Problem, ProblemsError, RunnerError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found about one topic."""

    topic: str
    found: str
    """In words."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The same for scripts; units are in the names."""
    error: RunnerError | None = None
    """Why the config can't run here; None where this topic is no obstacle."""
    advice: tuple[str, ...] = ()
    """What to do, in plain words."""

    @property
    def mark(self) -> str:
        """A word for the first column: ok, note (there is advice) or no."""
        return "no" if self.error is not None else "note" if self.advice else "ok"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that was found."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[RunnerError, ...]:
        """What is in the way, each once."""
        errors = (finding.error for finding in self.findings if finding.error is not None)
        return tuple({(error.name, str(error)): error for error in errors}.values())

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Cells of a table: mark, topic, what was found; advice stands below."""
        for finding in self.findings:
            text = finding.found if finding.error is None else f"{finding.error.name}: {finding.error}"
            yield finding.mark, finding.topic, text
            yield from (("", "", f"→ {advice}") for advice in finding.advice)

    def to_json(self) -> dict[str, Any]:
        """Plain values: can_run, errors, advice, and by topic what was found."""
        return {
            "can_run": not self.errors,
            "errors": [{"name": error.name, "message": str(error)} for error in self.errors],
            "advice": [advice for finding in self.findings for advice in finding.advice],
            "findings": {
                finding.topic: {"mark": finding.mark, "found": finding.found, **finding.values}
                for finding in self.findings
            },
        }


def refusals(topic: str, error: RunnerError) -> list[Finding]:
    """A finding for each mistake that an error holds."""
    if not isinstance(error, ProblemsError):
        return [Finding(topic=topic, found=str(error), error=error)]
    return [
        _refusal(topic if number == 1 else f"{topic} {number}", error, problem)
        for number, problem in enumerate(error.problems, 1)
    ]


def _refusal(topic: str, error: ProblemsError, problem: Problem) -> Finding:
    single = type(error)([problem])
    return Finding(topic=topic, found=str(single), error=single)


def gigabytes(num_bytes: float) -> str:
    """Bytes in the unit that people read."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"
