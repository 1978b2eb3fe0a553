from __future__ import annotations

import os
import signal

import pytest

from runner.base.errors import DeviceError
from runner.tools.dataset.parallel import in_parallel, num_workers


def double(number: int) -> int:
    return 2 * number


def die_at_seven(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [0, 3])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(in_parallel(double, range(1000), workers)) == [(number, 2 * number) for number in range(1000)]
    assert list(in_parallel(double, [], workers)) == []


def test_tasks_are_taken_only_as_they_are_needed():
    taken = []
    tasks = (taken.append(number) or number for number in range(10_000))
    results = in_parallel(double, tasks, 2)
    assert next(results) == (0, 0)
    assert len(taken) < 200
    results.close()


def test_the_death_of_a_process_has_a_name():
    with pytest.raises(DeviceError, match="a process that decodes images died"):
        list(in_parallel(die_at_seven, range(100), 2))


def test_a_number_of_workers_is_taken_as_it_is():
    assert num_workers(5) == 5
    assert num_workers(0) == 0
    assert num_workers("auto") != 1
