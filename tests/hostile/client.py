"""Talks to a server of forks, and counts what came of the inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from tests.hostile.harness import GOOD, Outcome
from tests.hostile.watch import ROOT


class Client:
    """A server of forks that answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def attempt(self, family: str, number: int) -> dict[str, Any]:
        """Try one input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{family} {number}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "broken" not in answer, answer["broken"]
        return answer


@contextmanager
def serving() -> Iterator[Client]:
    """A server for as long as the block lasts."""
    command = [sys.executable, "-m", "tests.hostile.server"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    ) as process:
        yield Client(process)
        assert process.stdin is not None
        process.stdin.close()


def told(family: str, number: int, answer: dict[str, Any]) -> str:
    """What a failing input was, and how to try it again."""
    again = f"python -m tests.hostile.server {family} {number}"
    typed = " ".join(answer["argv"])[:500]
    return (
        f"{answer['outcome']}: {answer['title'][:200]}\n  {again}\n  {typed}\n  {answer['detail']}\n{answer['output']}"
    )


def as_table(counts: Iterable[tuple[str, dict[str, int]]]) -> list[str]:
    """Lines of family × outcome."""
    sums: dict[str, Counter[str]] = {}
    for family, own in counts:
        sums.setdefault(family, Counter()).update(own)
    sums["all"] = sum(sums.values(), Counter())
    outcomes: tuple[Outcome, ...] = get_args(Outcome)
    assert set(GOOD) < set(outcomes)
    head = " ".join([f"{'family':<16}", *(f"{name:>9}" for name in ("inputs", *outcomes))])
    rows = (
        " ".join([f"{family:<16}", *(f"{number:>9}" for number in (own.total(), *(own[name] for name in outcomes)))])
        for family, own in sums.items()
    )
    return [head, *rows]
