import errno
import importlib.util
import json
import os
import subprocess
import sys

import pytest
import yaml

from runner.base.errors import ConfigError, MissingPackageError, TrackerError
from runner.config.compose import compose_one
from runner.config.saved import load_saved
from runner.config.schema.tracker import TrackerConfig
from runner.run.tracking.beside import check_trackers, uri_of, with_trackers
from runner.run.tracking.follower import Follower, sync_run
from tests.composed import refused
from tests.made_runs import make_run


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def tracker_of(*overrides):
    return compose_one(overrides).config.tracker


def test_several_trackers_are_a_list():
    assert tracker_of().names == ()
    assert tracker_of("tracker=wandb").names == ("wandb",)
    assert tracker_of("tracker=[mlflow,csv]", "tracker.artifacts=all").names == ("mlflow", "csv")
    assert tracker_of("tracker=[mlflow,csv]", "tracker.use.csv=false").names == ("mlflow",)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("tracker=mlflo", "did you mean mlflow"),
        ("tracker=[csv,../x]", "must be the name of an option"),
        ("tracker.uri=s3://bucket", "must begin with http"),
        ("tracker.uri=http://me:secret@host", "holds a password"),
        ("tracker.use.tensorboard=true", "must be 'mlflow', 'wandb' or 'csv'"),
        ("tracker.wait_seconds=-1", "must be at least 0"),
    ],
)
def test_mistakes_are_named(typed, message):
    assert message in refused(typed)


def test_mlflow_needs_an_address_and_a_client(monkeypatch):
    config = tracker_of("tracker=mlflow")
    with pytest.raises(ConfigError, match=r"type tracker.uri=http://HOST:PORT, set MLFLOW_TRACKING_URI"):
        check_trackers(config)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    check_trackers(config)
    assert uri_of(config) == "http://host"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r'tracker=mlflow needs mlflow.*pip install "mlflow-skinny'):
        check_trackers(config)
    check_trackers(tracker_of("tracker=csv"))


def test_a_saved_address_counts_only_where_it_is_typed(tmp_path):
    run_dir = make_run(tmp_path / "run")
    values = yaml.safe_load((run_dir / "config.yaml").read_text())
    values["tracker"] |= {"use": {"mlflow": True}, "uri": "http://somebody.example"}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(values))
    assert uri_of(load_saved(run_dir).tracker) is None
    assert uri_of(load_saved(run_dir, ["tracker.uri=http://mine"]).tracker) == "http://mine"
    assert load_saved(run_dir, ["tracker=[wandb,csv]"]).tracker.names == ("wandb", "csv")


def test_without_a_tracker_no_process_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started a process"))
    with with_trackers(tmp_path, tracker_of()):
        pass


def test_a_killed_training_ends_its_follower(tmp_path):
    """Nothing but the end of the pipe tells it."""
    run_dir = make_run(tmp_path / "run", status="running")
    config = TrackerConfig(use={"csv": True}, uri=None, project="x", artifacts="none", wait_seconds=60)
    settings = {"run_dir": str(run_dir), "uri": None, "config": config.model_dump(mode="json")}
    follower = [sys.executable, "-m", "runner.run.tracking.follower"]
    done = subprocess.run(follower, input=json.dumps(settings) + "\n", text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (run_dir / "metrics.csv").is_file()


def test_a_damaged_run_is_told_to_nobody_and_named(tmp_path):
    run_dir = make_run(tmp_path / "run")
    (run_dir / "metrics.jsonl").write_text("{\n")
    config = TrackerConfig(use={"csv": True}, uri=None, project="x", artifacts="none", wait_seconds=60)
    with pytest.raises(TrackerError, match=r"csv has not everything: CheckpointError: .*metrics.jsonl is damaged"):
        sync_run(run_dir, config, None)
    assert not (run_dir / "metrics.csv").exists()


def test_what_a_client_says_of_an_address_is_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "planted")
    uri = "http://me:pass@host/?token=query"
    config = TrackerConfig(use={"mlflow": True}, uri=None, project="x", artifacts="none", wait_seconds=60)
    follower = Follower(make_run(tmp_path / "run"), config, uri)

    def refuse(name):
        raise ConnectionError(f"{uri}/api/2.0 refused planted\nand more")

    monkeypatch.setattr(follower, "_open", refuse)
    follower.step(is_alive=False)
    assert follower.problems == {"mlflow": "ConnectionError: http://***@host/?***/api/2.0 refused ***"}


def test_a_follower_that_cannot_be_started_ends_no_training(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    run_dir = make_run(tmp_path / "run")
    trained = []
    with with_trackers(run_dir, tracker_of("tracker=csv")):
        trained.append(True)
    assert trained
    assert "can't be started" in caplog.text and f"`runs sync run={run_dir}` sends the run" in caplog.text
