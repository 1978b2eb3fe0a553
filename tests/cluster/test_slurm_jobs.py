import json
import math
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from runner.dist.addresses import other_addresses
from runner.run.run_folder import is_alive
from tests.cluster.conftest import CPU_JOB, PAIR, command_output, parse, wait_for, why_not
from tests.listening import is_loopback, listening

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
    return [pid for pid in pids if b"python" in program_of(pid)]


def program_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return b""  # It has ended.


def test_srun_over_two_nodes_trains_one_run(start, tiny, tmp_path):
    start(("srun", "--nodes=2", "--ntasks=2"), tiny(*PAIR))
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/run.json")]
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", 2, "adopted")


def test_ranks_of_a_job_listen_where_they_meet_and_at_loopback(submit):
    """Both nodes are this machine, which their names call by a loopback address, that others would not find."""
    run = submit("dist.nodes=2", "trainer.epochs=1000", *LONG)
    run.wait_for_epoch(1)
    found = listening(processes_of(run.folder))
    assert found
    others = {address for address, _ in found if not is_loopback(address)}
    assert others <= set(other_addresses()), "the store is at one address, where others would find it"
    assert {address for address, port in found if port < 32768} <= set(other_addresses())


def test_a_submitted_run_trains_on_two_nodes(submit, tmp_path):
    run = submit("dist.nodes=2")
    assert f"tail -F {run.folder}/logs/{run.job_id}_0_log.out" in run.told
    assert f"scancel {run.job_id}" in run.told
    run.wait_for_status("completed")
    assert [run.folder] == list(tmp_path.glob("outputs/*/*"))
    assert (run.record["attempts"], run.record["world_size"], run.epochs) == (1, 2, [1, 2])
    assert "runner" in run.record["command"] and "dist.nodes=2" in run.record["overrides"]
    assert (run.folder / "model" / "model.safetensors").is_file()
    said = run.folder / "logs" / f"{run.job_id}_0_log.out"
    wait_for("the last words of its log", lambda: "completed" in said.read_text())


def test_a_sweep_submits_a_job_per_combination(start, tiny):
    told = start(
        (), [*tiny(*CPU_JOB, "optimizer.lr=0.01,0.02"), "-m", "hydra/sweeper=basic", "hydra/launcher=basic"]
    ).stdout
    runs = parse(told)
    assert len({run.job_id for run in runs}) == 2
    assert {run.folder.name for run in runs} == {"0", "1"}
    rates = [yaml.safe_load((run.folder / "config.yaml").read_text())["optimizer"]["lr"] for run in runs]
    assert rates == [0.01, 0.02]
    for run in runs:
        assert f"JobId={run.job_id} " in command_output("scontrol", "show", "job", "--oneliner", run.job_id)


def test_a_preempted_run_saves_itself_and_goes_on(submit):
    run = submit("dist.nodes=2", "dist.slurm.partition=low", "trainer.epochs=4", *LONG)
    run.wait_for_epoch(1)
    command_output("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    run.wait_for_status("completed")
    assert (run.record["attempts"], run.epochs) == (2, [1, 2, 3, 4])
    said = (run.folder / "logs" / f"{run.job_id}_0_log.out").read_text()
    assert "back in the queue (preempted by another job)" in said


def limit_soon(job_id):
    """Set the limit of a running job to the first whole minute that leaves it time to be warned.

    SLURM looks at limits every 30 seconds, and warns when one is nearer than that and the seconds of the warning.
    """
    shown = command_output("scontrol", "show", "job", "--oneliner", job_id)
    hours, minutes, seconds = map(int, re.search(r"RunTime=(\d+):(\d+):(\d+)", shown).groups())
    limit = math.ceil((3600 * hours + 60 * minutes + seconds + 35) / 60)
    command_output("scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit}")


@pytest.mark.timeout(500)
def test_the_life_of_a_run(submit, start):
    """Its time limit, an operator's requeue, its owner's cancel and resume: one folder, no epoch lost or twice."""
    limits = ("dist.slurm.time_minutes=60", "dist.slurm.warning_seconds=10")
    run = submit(*limits, "trainer.epochs=1000", *LONG)
    said = run.folder / "logs" / f"{run.job_id}_0_log.out"
    run.wait_for_epoch(1)
    limit_soon(run.job_id)
    wait_for("word of its limit", lambda: "its time limit is near" in said.read_text(), seconds=120)
    command_output("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=60")
    wait_for("the second attempt", lambda: run.record["attempts"] == 2)
    run.wait_for_epoch(len(run.epochs) + 1)
    assert "stopped on SIGUSR1" in run.log and "resumed     attempt 2, from checkpoint" in run.log
    assert "back in the queue (its time limit is near)" in said.read_text()

    command_output("scontrol", "requeue", run.job_id)
    wait_for("the third attempt", lambda: run.record["attempts"] == 3)
    run.wait_for_epoch(len(run.epochs) + 1)
    assert "resumed     attempt 3, from checkpoint" in run.log
    assert said.read_text().count("back in the queue") == 1, "SLURM puts it back by itself"

    command_output("scancel", run.job_id)
    run.wait_for_status("stopped")
    wait_for("the end of its job", lambda: not command_output("squeue", "--noheader"), seconds=60)
    assert not is_alive(run.folder)
    assert run.log.count("stopped on SIGTERM") == 2

    steps = 20 * (len(run.epochs) + 2)
    typed = ["resume", f"run={run.folder}", f"trainer.max_steps={steps}"]
    refused = start((), typed, is_well=False)
    assert (
        "the saved config would submit a job to SLURM, which it does only where that is typed again" in refused.stderr
    )
    job = [item for item in CPU_JOB if item.startswith("dist")]
    (again,) = parse(start((), [*typed, *job, *limits]).stdout)
    assert again.folder == run.folder and again.job_id != run.job_id
    run.wait_for_status("completed")
    assert run.record["attempts"] == 4
    assert run.epochs == list(range(1, steps // 20 + 1))


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
