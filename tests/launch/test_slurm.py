"""What is asked of SLURM, without one; tests/cluster asks a real one."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import runner
from runner.base.errors import ConfigError, LaunchError
from runner.launch import plan as mode
from runner.launch.plan import choose_launch
from runner.launch.preflight import preflight
from runner.launch.slurm import submit

# Keeps the script that it is given, and answers like sbatch.
SBATCH = """#!/bin/sh
cp "$1" "{place}/script"
{answer}
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that says what it is told to; returns the folder in which it keeps the script."""

    def says(answer="echo Submitted batch job 12"):
        place = tmp_path / "bin"
        place.mkdir(exist_ok=True)
        for name in ("sbatch", "srun"):
            (place / name).write_text(SBATCH.format(place=place, answer=answer))
            (place / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
        return place

    return says


def flags_of(script: Path) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    return {name: "".join(shlex.split(value)) for name, _, value in (line.partition("=") for line in lines)}


def submitted(overrides):
    ready = preflight(runner.load_config(overrides))
    return runner.fit(ready.config)


def test_the_job_asks_for_what_the_config_says(sbatch, tiny):
    place = sbatch()
    run = submitted(
        tiny(
            "dist=slurm",
            "dist.nodes=2",
            "dist.slurm.gpus_per_node=4",
            "dist.slurm.partition=gpu",
            "dist.slurm.account=vision",
            "dist.slurm.constraint=a100",
            "dist.slurm.time_minutes=90",
            "dist.slurm.mem=64G",
            "dist.slurm.setup=[module load cuda]",
            "dist.slurm.extra.mail_type=END",
            "dist.slurm.extra.exclusive=true",
            "dist.slurm.extra.contiguous=false",
            "trainer.device=auto",
            "data.batch_size=4",
        )
    )
    flags = flags_of(place / "script")
    assert flags == {
        "job-name": "runner",
        "nodes": "2",
        "ntasks-per-node": "4",
        "gpus-per-node": "4",
        "cpus-per-task": "8",
        "partition": "gpu",
        "account": "vision",
        "constraint": "a100",
        "time": "90",
        "mem": "64G",
        "requeue": "",
        "signal": "USR1@120",
        "mail-type": "END",
        "exclusive": "",
        "output": f"{run.run_dir}/logs/%j_0_log.out",
        "open-mode": "append",
    }
    assert "\nmodule load cuda\n" in (place / "script").read_text()
    assert (run.job_id, run.run_dir.is_dir()) == ("12", True)
    assert (run.run_dir / "config.yaml").is_file() and not (run.run_dir / "run.json").exists()


def test_gpus_of_a_kind_are_asked_for_once(sbatch, tiny):
    place = sbatch()
    submitted(tiny("dist=slurm", "dist.slurm.gpus_per_node=2", 'dist.slurm.extra.gres="gpu:a100:2"'))
    flags = flags_of(place / "script")
    assert flags["gres"] == "gpu:a100:2" and "gpus-per-node" not in flags


def test_what_a_login_node_lacks_is_no_reason_to_refuse(sbatch, tiny):
    sbatch()
    run = submitted(tiny("dist=slurm", "trainer.device=cuda", "trainer.precision=fp16"))
    assert run.job_id == "12"


def test_a_refused_job_leaves_nothing_and_says_why(sbatch, tiny, tmp_path):
    sbatch("echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    with pytest.raises(LaunchError, match="SLURM refused the job: invalid partition specified: nope"):
        submitted(tiny("dist=slurm"))
    assert not list(tmp_path.glob("outputs/*"))


def test_an_answer_that_is_none_is_told(sbatch, tiny, tmp_path):
    sbatch("echo queued")
    with pytest.raises(LaunchError, match="queued"):
        submitted(tiny("dist=slurm"))
    assert not list(tmp_path.glob("outputs/*/*"))


def test_without_slurm_or_submitit_it_is_refused_with_the_remedy(sbatch, monkeypatch, tmp_path):
    config = runner.load_config(["dist=slurm"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"SLURM's sbatch and srun.*login\s+node"):
        choose_launch(config)
    sbatch()
    monkeypatch.setattr(mode.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"pip install .submitit"):
        choose_launch(config)


@pytest.mark.parametrize(
    ("overrides", "world_size"),
    [
        ((), 1),
        (("dist.slurm.gpus_per_node=8", "dist.nodes=2"), 16),
        (("dist.slurm.gpus_per_node=8", "trainer.device=cpu"), 1),
        (("dist.slurm.gpus_per_node=0", "dist.procs_per_node=3"), 3),
        (("dist.slurm.gpus_per_node=4", "dist.procs_per_node=2"), 2),
    ],
)
def test_the_world_follows_from_the_gpus_asked_for(sbatch, overrides, world_size):
    sbatch()
    plan = choose_launch(runner.load_config(["dist=slurm", *overrides]))
    assert (plan.mode, plan.world_size) == ("submitted", world_size)


def test_more_processes_than_gpus_are_refused_with_both_numbers(sbatch):
    sbatch()
    with pytest.raises(LaunchError, match=r"procs_per_node = 4.*gpus_per_node = 2"):
        choose_launch(runner.load_config(["dist=slurm", "dist.procs_per_node=4", "dist.slurm.gpus_per_node=2"]))


def test_a_process_of_the_job_submits_nothing():
    config = runner.load_config(["dist=slurm", "dist.slurm.gpus_per_node=0"])
    assert choose_launch(config, is_in_job=True).mode == "inline"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dist.slurm.mem=lots", "such as 64G"),
        ("dist.slurm.extra.ntasks_per_node=3", "set by dist.procs_per_node"),
        ("dist.slurm.extra.output=x", "logs go into the run folder"),
        ("dist.slurm.partitoin=x", "did you mean dist.slurm.partition?"),
        ('dist.slurm.job_name="x\ny"', "one line without control characters"),
        ('dist.slurm.setup=["x\ny"]', "a list of single lines"),
        ('dist.slurm.extra={qos: "x\ny"}', "no control characters in the value of 'qos'"),
        ("+dist.slurm.extra.Wrap=x", "long ones of sbatch"),
        ("dist.slurm.time_minutes=0", "at least 1"),
    ],
)
def test_mistakes_in_what_is_asked_for(override, message):
    with pytest.raises(ConfigError) as refusal:
        runner.load_config(["dist=slurm", override])
    assert message in str(refusal.value)


@pytest.fixture
def squeue(sbatch, monkeypatch):
    """A queue that holds the jobs that it is told."""

    def holds(*jobs):
        place = sbatch()
        (place / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo {job}\n" for job in jobs))
        (place / "squeue").chmod(0o755)

    return holds


@pytest.mark.long
def test_a_run_that_was_cancelled_in_the_queue_is_submitted_again(squeue, tiny, run_cli):
    squeue()
    run = submitted(tiny("dist=slurm"))
    done = run_cli("resume", f"run={run.run_dir}", "dist=slurm", "trainer.epochs=7")
    assert done.returncode == 0, done.stderr
    assert f"{run.run_dir}, which had not begun" in done.stdout and "submitted   job 12" in done.stdout
    assert "epochs: 7" in (run.run_dir / "config.yaml").read_text()
    done = run_cli("resume", f"run={run.run_dir}", "dist=default", "trainer.epochs=1")
    assert done.returncode == 0, done.stderr
    assert json.loads((run.run_dir / "run.json").read_text())["status"] == "completed"


def test_a_run_whose_job_waits_is_not_submitted_twice(squeue, tiny, run_cli):
    squeue(11, 12)
    run = submitted(tiny("dist=slurm"))
    done = run_cli("resume", f"run={run.run_dir}", "dist=slurm")
    assert done.returncode == 2
    assert f"LaunchError: job 12 of {run.run_dir} is still in SLURM's queue" in done.stderr
    assert (run.run_dir / "config.yaml").is_file(), "what was prepared is kept"


def test_a_saved_config_submits_nothing_unless_that_is_typed_again(squeue, tiny, run_cli, tmp_path):
    squeue()
    evil = tmp_path / "evil"
    run = submitted(tiny("dist=slurm", "dist.slurm.partition=gpu", f"dist.slurm.setup=[touch {evil}]"))
    (tmp_path / "bin" / "script").unlink()
    done = run_cli("resume", f"run={run.run_dir}", "trainer.epochs=7")
    assert done.returncode == 2
    assert "ConfigError: dist.launcher, dist.slurm.partition, dist.slurm.setup: the saved config would" in done.stderr
    assert f"""type: dist=slurm dist.slurm.partition=gpu 'dist.slurm.setup=["touch {evil}"]';""" in done.stderr
    assert not (tmp_path / "bin" / "script").exists()
    line = shlex.split(done.stderr.partition("type: ")[2].partition("; to continue")[0])
    done = run_cli("resume", f"run={run.run_dir}", *line)
    assert done.returncode == 0, done.stderr
    assert f"touch {evil}\n" in (tmp_path / "bin" / "script").read_text(), "its owner has typed it"


def test_the_job_imports_nothing_from_the_folder_in_which_it_was_typed(sbatch, tiny):
    place = sbatch()
    submitted(tiny("dist=slurm"))
    assert f"{sys.executable} -P -u -m submitit.core._submit" in (place / "script").read_text()


@pytest.mark.parametrize(
    "what", ["job_name", "partition", "account", "constraint", "setup", "extra", "a name in extra"]
)
def test_no_value_of_a_saved_config_is_a_line_of_the_job(sbatch, tiny, tmp_path, run_cli, what):
    place = sbatch()
    run = submitted(tiny("dist=slurm"))
    (place / "script").unlink()
    saved = yaml.safe_load((run.run_dir / "config.yaml").read_text())
    evil = f"x\ntouch {tmp_path}/evil\n"
    values = {"setup": [evil], "extra": {"qos": evil}, "a name in extra": {evil: "x"}}
    saved["dist"]["slurm"]["extra" if what == "a name in extra" else what] = values.get(what, evil)
    (run.run_dir / "config.yaml").write_text(yaml.safe_dump(saved))
    for typed in ([], ["dist.launcher=submitted"]):
        done = run_cli("resume", f"run={run.run_dir}", *typed)
        assert done.returncode == 2
        assert "ConfigError" in done.stderr and "Traceback" not in done.stderr
        assert not (place / "script").exists()


def test_a_run_at_work_is_not_submitted_again(sbatch, tiny, tmp_path):
    from runner.training.attempt import Attempt, Training

    sbatch()
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    ready = preflight(runner.load_config(tiny("dist=slurm")))
    with subprocess.Popen(
        ["flock", "--exclusive", str(folder / "logs" / "rank_0.log"), "-c", "echo; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        with pytest.raises(runner.base.errors.OutputError, match="another process"):
            submit(ready, folder, Training(attempt=Attempt(is_resumed=True)))
