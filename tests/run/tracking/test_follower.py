"""Runs that tell a real MLflow server of themselves, whatever becomes of the server."""

import http.server
import json
import signal
import threading
from pathlib import Path

import pytest
import yaml

from runner.base.errors import TrackerError
from runner.base.files import sha256_of
from runner.cli.commands import resume, train
from runner.cli.commands.runs import sync
from runner.run.run_folder import read_record
from runner.run.tracking.mlflow_run import read_id
from tests.conftest import SMALL_NET

pytestmark = pytest.mark.usefixtures("fast_polls")


@pytest.fixture
def fast_polls(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")


@pytest.fixture
def start(tiny, server, tmp_path):
    def run(*more):
        known = set(tmp_path.glob("outputs/*/*/run.json"))
        tracker = ["tracker=mlflow", f"tracker.uri={server.uri}", "tracker.wait_seconds=120", "trainer.print_every=1"]
        assert train.run(tiny(*SMALL_NET, *tracker, *more)) == 0
        (file,) = set(tmp_path.glob("outputs/*/*/run.json")) - known
        return file.parent

    return run


def steps_of(client, run_dir, key):
    """The steps that the server has of a metric, in order: twice if it was sent twice."""
    return sorted(metric.step for metric in client.get_metric_history(read_id(run_dir), key))


def test_a_run_and_its_continuation_are_one_run_of_the_server(start, client, server, tmp_path):
    run_dir = start("run.name=first", "run.tags={species: ants}", "tracker=[mlflow,csv]", "tracker.artifacts=all")
    run_id = read_id(run_dir)
    assert resume.run([f"run={run_dir}", "trainer.epochs=3", f"tracker.uri={server.uri}"]) == 0
    assert read_id(run_dir) == run_id
    # As after a kill between the request that makes the server's run and the file that holds its id.
    (run_dir / "tracking.json").unlink()
    assert sync.run([f"run={run_dir}", f"tracker.uri={server.uri}"]) == 0
    assert read_id(run_dir) == run_id
    run = client.get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert steps_of(client, run_dir, "epoch") == [5, 10, 15]
    assert steps_of(client, run_dir, "train/loss") == list(range(1, 16))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert run.data.metrics["val_top1"] == rows[-1]["val_top1"]
    assert (run.data.params["trainer.epochs"], run.data.tags["resumed.trainer.epochs"]) == ("2", "3")
    assert run.data.tags["species"] == "ants"
    assert run.data.tags["runner.model_sha256"] == sha256_of(run_dir / "model" / "model.safetensors")
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert names >= {"model", "config.yaml", "metrics.jsonl", "environment.txt"}
    fetched = client.download_artifacts(run_id, "model/model.safetensors", str(tmp_path))
    assert sha256_of(Path(fetched)) == run.data.tags["runner.model_sha256"]
    table = (run_dir / "metrics.csv").read_text().splitlines()
    assert (len(table), table[0].split(",")[:2]) == (4, ["epoch", "step"])


@pytest.mark.long
def test_a_server_that_is_gone_frozen_or_back(start, client, server, tiny, tmp_path, messages):
    """The run is the same as an untracked one, and `runs sync` sends what is missing, once."""
    plain = tmp_path / "plain"
    assert train.run([*tiny(*SMALL_NET), f"output_dir={plain}"]) == 0
    (expected,) = plain.glob("*/*/model/model.safetensors")
    server.kill()
    gone = start("tracker.wait_seconds=0.5")
    assert any("sends the rest" in message for message in messages)
    with pytest.raises(TrackerError, match="mlflow has not everything"):
        sync.run([f"run={gone}", f"tracker.uri={server.uri}"])
    server.start()
    server.signal(signal.SIGSTOP)
    frozen = start("tracker.wait_seconds=0.5")
    server.signal(signal.SIGCONT)
    for run_dir in (gone, frozen):
        assert sha256_of(run_dir / "model" / "model.safetensors") == sha256_of(expected)
        assert read_record(run_dir)["status"] == "completed"
        for _ in range(2):
            assert sync.run([f"run={run_dir}", f"tracker.uri={server.uri}"]) == 0
        assert steps_of(client, run_dir, "epoch") == [5, 10]
        assert steps_of(client, run_dir, "train/loss") == list(range(1, 11))
        assert client.get_run(read_id(run_dir)).info.status == "FINISHED"


@pytest.mark.long
def test_a_server_that_refuses_costs_a_warning(tiny, tmp_path, messages, monkeypatch):
    """No credential is in anything that was written, wherever it came from."""

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b"who are you?")

        do_POST = do_GET

        def log_message(self, *_):
            pass

    monkeypatch.chdir(tmp_path)  # in this repository, source.patch may hold this very file
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "planted-token")
    monkeypatch.setenv("WANDB_API_KEY", "planted-key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        monkeypatch.setenv("TRACKER", f"http://me:planted-password@127.0.0.1:{refusing.server_port}")
        overrides = ["tracker=mlflow", "tracker.uri=${oc.env:TRACKER}", "tracker.wait_seconds=12", *SMALL_NET]
        assert train.run(tiny(*overrides)) == 0
        refusing.shutdown()
    (run_file,) = tmp_path.glob("outputs/*/*/run.json")
    assert read_record(run_file.parent)["status"] == "completed"
    assert any("401" in message for message in messages), messages
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"planted" in text]
    assert not [message for message in messages if "planted" in message]
    saved = yaml.safe_load((run_file.parent / "config.yaml").read_text())
    assert saved["tracker"]["uri"] == "${oc.env:TRACKER}"


@pytest.mark.long
def test_trials_are_children_of_their_sweep(tiny, server, client, tmp_path, run_cli):
    overrides = tiny(*SMALL_NET, "tracker=mlflow", f"tracker.uri={server.uri}", "tracker.wait_seconds=120")
    done = run_cli(
        "-m", "seed=1,2", *overrides, "trainer.epochs=1", "tracker.project=sweep", f"sweep.dir={tmp_path / 's'}"
    )
    assert done.returncode == 0, done.stderr
    parent = read_id(tmp_path / "s")
    runs = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]
    assert (len(runs), len(children)) == (3, 2)
    assert {run.data.params["seed"] for run in children} == {"1", "2"}
    assert {run.info.status for run in runs} == {"FINISHED"}
