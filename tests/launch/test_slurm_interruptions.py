from datetime import datetime

import pytest

from runner.launch.slurm import why_interrupted

NOW = datetime(2026, 11, 20, 12, 0, 0)


def job(state="RUNNING", preempted="None", end="2026-11-20T18:00:00"):
    """What scontrol says, shortened."""
    return (
        f"JobId=7 JobName=runner UserId=me(1) JobState={state} Reason=None Requeue=1 Restarts=0 "
        f"EligibleTime=2026-11-20T10:00:00 EndTime={end} PreemptEligibleTime=2026-11-20T10:00:00 "
        f"PreemptTime={preempted} Comment=EndTime=x\n"
    )


def test_a_job_that_its_owner_stops_is_not_put_back():
    assert why_interrupted(job(), 120, NOW) is None
    assert why_interrupted(job("CANCELLED", end="2026-11-20T12:00:00"), 120, NOW) is None


def test_a_job_that_is_back_in_the_queue_already_is_left_alone():
    assert why_interrupted(job("PENDING", end="2026-11-20T12:01:00"), 120, NOW) is None


def test_a_preempted_job_is_put_back():
    assert why_interrupted(job(preempted="2026-11-20T12:00:00"), 120, NOW) == "preempted by another job"


@pytest.mark.parametrize(("end", "is_near"), [("12:02:00", True), ("12:03:29", True), ("12:04:00", False)])
def test_a_job_near_its_limit_is_put_back(end, is_near):
    reason = why_interrupted(job(end=f"2026-11-20T{end}"), 120, NOW)
    assert reason == ("its time limit is near" if is_near else None)


def test_a_job_without_a_limit_never_nears_it():
    assert why_interrupted(job(end="Unknown"), 120, NOW) is None
