"""The command as a user calls it: what it accepts, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, DeviceError, PreflightError, UsageError
from runner.cli.commands import doctor
from tests.conftest import SMALL_NET

QUICK = (*SMALL_NET, "doctor.seconds=0.1")


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def report_of(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_a_machine_that_can_run_the_experiment_is_reported_with_figures(tiny, tmp_path, capsys):
    before = files_below(tmp_path)
    assert doctor.run([*tiny(*QUICK, "data.workers=1", "trainer.ema_decay=0.9"), "format=json"]) == 0
    report = report_of(capsys)
    findings = report["findings"]
    assert (report["can_run"], report["errors"]) == (True, [])
    pace = findings["pace"]
    assert pace["bottleneck"] in ("data", "compute")
    assert all(pace[f"{side}images_per_second"] > 0 for side in ("", "loader_", "device_", "evaluation_"))
    assert pace["step_seconds"] >= pace["data_wait_seconds"] >= 0
    assert findings["memory"]["peak_bytes"] > 1e7
    assert findings["whole run"]["num_steps"] == 2 * 40 // 8
    assert findings["cores"]["num_workers"] == 1
    assert findings["shared memory"]["needed_bytes"] == 2 * 3 * 8 * 3 * 32 * 32
    # Weights, their average and the momentum, for four checkpoints; the packaged model.
    assert findings["disk"]["needed_bytes"] > 4 * 3 * 1_000_000
    assert files_below(tmp_path) == before


def test_the_table_is_for_people(tiny, capsys):
    assert doctor.run([*tiny(), "doctor.measure=false"]) == 0
    out = capsys.readouterr().out
    assert "shufflenet_v2_x0_5 on synthetic: 40 training and 24 validation images" in " ".join(out.split())
    assert "this machine can run it" in out


def test_all_reasons_are_reported_at_once(tiny, tmp_path, capsys):
    with pytest.raises(PreflightError) as caught:
        doctor.run([*tiny("data.batch_size=99", "dist.rendezvous=no.such.host.invalid:29500"), "format=json"])
    told = str(caught.value)
    assert "InvalidDatasetError: data=synthetic: one step needs 99 images" in told
    assert "LaunchError: dist.rendezvous: the host 'no.such.host.invalid' does not resolve" in told
    report = report_of(capsys)
    assert not report["can_run"]
    assert [error["name"] for error in report["errors"]] == ["InvalidDatasetError", "LaunchError"]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="there the device is there")
def test_a_device_that_is_not_there_is_named_once(tiny, capsys):
    with pytest.raises(DeviceError, match=r"^trainer.device = mps: this machine has no such device"):
        doctor.run(tiny("trainer.device=mps"))
    assert "this machine can't run it" in capsys.readouterr().out


def test_mistakes_of_its_own_keys_and_of_the_config_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        doctor.run(["format=xml", "doctor.seconds=x", "trainer.epchos=4"])
    assert {problem.key for problem in caught.value.problems} == {"format", "doctor.seconds", "trainer.epchos"}


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_it_looks_at_one_experiment(flag):
    with pytest.raises(UsageError, match="one experiment"):
        doctor.run([flag, "optimizer.lr=0.1,0.2"])


def test_within_a_group_of_processes_it_is_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UsageError, match="has started 2 processes"):
        doctor.run([])


def test_an_experiment_of_the_users_own_folder_is_found(tmp_path, tiny, capsys):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    typed = ["--config-dir", f"{tmp_path}/conf", "experiment=mine", *tiny(), "doctor.measure=false"]
    assert doctor.run(typed) == 0
    assert "can run it" in capsys.readouterr().out


def test_a_refused_config_imports_no_torch(tmp_path):
    code = (
        "import sys\nfrom runner.base.errors import ConfigError\nfrom runner.cli.commands import doctor\n"
        "try:\n    doctor.run(['trainer.epchos=1'])\nexcept ConfigError:\n    print('torch' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_run_for_slurm_is_judged_on_its_nodes(tiny, capsys, monkeypatch, tmp_path):
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor.run([*tiny("dist=slurm"), "format=json"]) == 0
    report = report_of(capsys)
    assert "those of SLURM's nodes" in report["findings"]["machine"]["found"]
    assert "pace" not in report["findings"]
