import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from runner.run_folder import is_alive
from tests.cluster.conftest import CPU_JOB, command_output, parse, wait_for, why_not

REASON = why_not("srun", "sbatch", "scontrol")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=REASON or "")]
LONG = ("data.num_train=160", "trainer.patience=null", "trainer.print_every=1000")


def processes_of(folder):
    """Ranks of a run's job on this machine."""
    found = subprocess.run(
        ["pgrep", "-f", f"submitit.core._submit {folder}/logs"], capture_output=True, text=True, check=False
    )
    pids = [int(pid) for pid in found.stdout.split()]
    # srun has the same words in its command line.
    return [pid for pid in pids if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]


def test_srun_over_two_nodes_trains_one_run(start, tiny, tmp_path):
    start(("srun", "--nodes=2", "--ntasks=2"), tiny())
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/run.json")]
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", 2, "adopted")


def test_a_submitted_run_trains_on_two_nodes(submit, tmp_path):
    run = submit("dist.nodes=2")
    assert f"tail -F {run.folder}/logs/{run.job_id}_0_log.out" in run.told
    assert f"scancel {run.job_id}" in run.told
    run.wait_for_status("completed")
    assert [run.folder] == list(tmp_path.glob("outputs/*/*"))
    assert (run.record["attempts"], run.record["world_size"], run.epochs) == (1, 2, [1, 2])
    assert "runner" in run.record["command"] and "dist.nodes=2" in run.record["overrides"]
    assert (run.folder / "model" / "model.safetensors").is_file()
    assert "completed" in (run.folder / "logs" / f"{run.job_id}_0_log.out").read_text()


def test_a_sweep_submits_a_job_per_combination(start, tiny):
    told = start((), [*tiny(*CPU_JOB, "optimizer.lr=0.01,0.02", "trainer.epochs=1"), "-m"]).stdout
    runs = parse(told)
    for run in runs:
        run.wait_for_status("completed")
    assert len({run.job_id for run in runs}) == len({run.folder for run in runs}) == 2
    assert {run.folder.name for run in runs} == {"0", "1"}


def test_a_requeued_job_goes_on_and_is_completed(submit):
    run = submit("trainer.epochs=8", *LONG)
    run.wait_for_epoch(2)
    command_output("scontrol", "requeue", run.job_id)
    run.wait_for_status("completed")
    assert (run.record["attempts"], run.epochs) == (2, list(range(1, 9)))
    assert "stopped on SIGTERM" in run.log and "resumed     attempt 2, from checkpoint" in run.log


def test_a_preempted_run_saves_itself_and_goes_on(submit):
    run = submit("dist.nodes=2", "dist.slurm.partition=low", "trainer.epochs=6", *LONG)
    run.wait_for_epoch(2)
    command_output("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    run.wait_for_status("completed")
    assert (run.record["attempts"], run.epochs) == (2, list(range(1, 7)))
    said = (run.folder / "logs" / f"{run.job_id}_0_log.out").read_text()
    assert "back in the queue (preempted by another job)" in said


def test_a_run_saves_itself_before_its_time_limit_and_goes_on_until_it_is_cancelled(submit):
    run = submit("dist.slurm.time_minutes=2", "dist.slurm.warning_seconds=10", "trainer.epochs=1000", *LONG)
    wait_for("the second attempt", lambda: run.record["attempts"] == 2, seconds=200)
    before = len(run.epochs)
    run.wait_for_epoch(before + 1)
    assert "stopped on SIGUSR1" in run.log and "resumed     attempt 2, from checkpoint" in run.log
    said = (run.folder / "logs" / f"{run.job_id}_0_log.out").read_text()
    assert "back in the queue (its time limit is near)" in said
    command_output("scancel", run.job_id)
    run.wait_for_status("stopped")
    assert run.epochs == list(range(1, len(run.epochs) + 1))
    wait_for("an empty queue", lambda: not command_output("squeue", "--noheader"), seconds=60)
    assert "SLURM calls it CANCELLED" in (run.folder / "logs" / f"{run.job_id}_0_log.out").read_text()


def test_resume_submits_a_stopped_run_again(submit, start):
    run = submit("trainer.epochs=30", *LONG)
    run.wait_for_epoch(1)
    command_output("scancel", run.job_id)
    run.wait_for_status("stopped")
    wait_for("the end of its process", lambda: not is_alive(run.folder))
    (again,) = parse(start((), ["resume", f"run={run.folder}", "trainer.max_steps=100"]).stdout)
    assert again.folder == run.folder and again.job_id != run.job_id
    run.wait_for_status("completed")
    assert run.record["attempts"] == 2
    assert run.epochs == list(range(1, len(run.epochs) + 1))


def test_a_killed_rank_takes_the_others_along(submit):
    run = submit("dist.nodes=2", "trainer.epochs=1000", *LONG)
    run.wait_for_epoch(1)
    ranks = processes_of(run.folder)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    wait_for("the end of all ranks", lambda: not processes_of(run.folder), seconds=20)
    assert not is_alive(run.folder)


def test_a_job_that_slurm_refuses_leaves_no_folder(start, tiny, tmp_path):
    done = start((), tiny(*CPU_JOB, "dist.slurm.partition=nowhere"), is_well=False)
    assert done.returncode == 2
    assert "LaunchError: SLURM refused the job: invalid partition" in done.stderr
    assert not list(tmp_path.rglob("config.yaml"))
