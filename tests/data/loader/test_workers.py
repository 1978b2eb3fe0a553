from __future__ import annotations

import pytest

from runner.data.loader.workers import resolve_workers


@pytest.mark.parametrize(
    ("device", "cores", "processes", "expected"),
    [
        ("cpu", 1, 1, 0),
        ("cpu", 2, 1, 0),
        ("cpu", 3, 1, 0),
        ("cpu", 4, 1, 1),
        ("cpu", 8, 1, 2),
        ("cpu", 64, 1, 4),
        ("cpu", 64, 8, 2),
        ("cuda", 1, 1, 1),
        ("cuda", 2, 1, 1),
        ("cuda", 8, 1, 7),
        ("cuda", 96, 8, 11),
        ("cuda", 192, 8, 16),
        ("cuda", 4, 8, 1),
        ("mps", 8, 1, 7),
    ],
)
def test_auto_divides_the_cores(device: str, cores: int, processes: int, expected: int) -> None:
    assert resolve_workers("auto", device, processes, num_cores=cores) == expected


@pytest.mark.parametrize("workers", [0, 3, 200])
def test_a_number_is_taken_as_it_is(workers: int) -> None:
    assert resolve_workers(workers, "cuda", 8, num_cores=2) == workers


def test_without_a_number_the_available_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # joblib's own way to limit what it counts.
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert resolve_workers("auto", "cuda", 1) == 1
    assert resolve_workers("auto", "cpu", 1) == 0
