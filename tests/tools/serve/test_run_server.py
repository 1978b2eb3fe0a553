"""Under load: batches, a full queue, a worker that dies, another version, the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.base.errors import CheckpointError, ConfigError, ServeError
from runner.base.files import sha256_of
from runner.cli.commands import serve
from tests.conftest import ROOT
from tests.made_package import make_package
from tests.tools.serve.conftest import Answered, form

# Answers once the test lets it, so that what is in hand and what waits is known.
WAITING_ENTRY = """
import os, time
from pathlib import Path
import numpy as np

class Waiting:
    def init(self):
        assert (Path(os.environ["RUNNER_MODEL_DIR"]) / "model.json").is_file()
        self.place = Path(os.environ["PLACE"])

    def run(self, images):
        with (self.place / "batches").open("a") as file:
            file.write(f"{[image.shape for image in images]}\\n")
        while not (self.place / "go").exists():
            time.sleep(0.01)
        return np.tile([0.5, 0.25, 0.25], (len(images), 1))
"""


@pytest.fixture
def waiting(start, trained, tmp_path):
    """A server of which each batch waits for the file `go`; it takes 2 images at once, and lets 3 wait."""
    site = make_package(
        tmp_path, "waiting_entry", WAITING_ENTRY, group="runner.serving", waiting="waiting_entry:Waiting"
    )
    rules = ("serve.entry=waiting", "serve.max_batch_size=2", "serve.queue_size=3", "serve.name=birds")
    return start(f"model={trained}", *rules, PYTHONPATH=f"{site}{os.pathsep}{ROOT}", PLACE=str(tmp_path))


@pytest.fixture
def image(trained) -> bytes:
    return next((trained.parents[2] / "photos" / "val").rglob("*.png")).read_bytes()


def until(condition: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(6000):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError


def test_what_was_accepted_is_answered_after_sigterm_and_the_rest_is_refused(waiting, image, tmp_path):
    batches = tmp_path / "batches"
    with ThreadPoolExecutor(8) as clients:
        first = clients.submit(waiting.score, image)
        until(batches.exists)
        queued = [clients.submit(waiting.score, image) for _ in range(3)]
        until(lambda: waiting.metric("runner_queue_images") == 3)
        full = waiting.score(image)
        assert (full.status, full.headers["Retry-After"]) == (429, "1")
        waiting.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(waiting.port))
        (tmp_path / "go").touch()
        answers = [one.result() for one in (first, *queued)]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.json["label"] for answer in answers} == {"<script>"}
    assert batches.read_text().splitlines() == ["[(36, 48, 3)]", "[(36, 48, 3), (36, 48, 3)]", "[(36, 48, 3)]"]
    assert waiting.process.wait(60) == 0
    assert "stopped     all requests that were accepted are answered\n" in waiting.lines


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_killed_worker_is_replaced_and_what_it_had_is_tried_once_more(waiting, image, tmp_path):
    (before,) = waiting.workers()
    with ThreadPoolExecutor(8) as clients:
        alone = clients.submit(waiting.score, image)
        until((tmp_path / "batches").exists)
        queued = [clients.submit(waiting.score, image) for _ in range(2)]
        until(lambda: waiting.metric("runner_queue_images") == 2)
        os.kill(before, signal.SIGKILL)
        lost = alone.result()
        assert (lost.status, lost.headers["Retry-After"]) == (503, "1"), "it was alone in the worker's hands"
        waiting.said(r"worker 0: process \d+ was ended by signal 9; another is started")
        until(lambda: waiting.metric("runner_workers_ready") == 1)
        (after,) = waiting.workers()
        until(lambda: len((tmp_path / "batches").read_text().splitlines()) == 2)
        os.kill(after, signal.SIGKILL)  # with two at once: each is tried again, alone
        (tmp_path / "go").touch()
        assert [one.result().status for one in queued] == [200, 200]
    lines = (tmp_path / "batches").read_text().splitlines()
    assert [line.count("36") for line in lines] == [1, 2, 1, 1]
    assert waiting.metric("runner_worker_deaths_total") == 2
    assert waiting.stop() == 0


def changed(model: Path, amount: float) -> str:
    """Change the weights of a package, and give its version."""
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if name.endswith("fc.bias"))
    weights[name] += torch.tensor([amount, 0.0, -amount])
    save_file(weights, model / "model.safetensors")
    card = json.loads((model / "model.json").read_text())
    card["weights_sha256"] = sha256_of(model / "model.safetensors")
    (model / "model.json").write_text(json.dumps(card))
    return str(card["weights_sha256"][:12])


@contextmanager
def asking(ask: Callable[[], Answered]) -> Iterator[list[Answered]]:
    """Ask from four clients without a pause, within the block."""
    answers: list[Answered] = []
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            answers.append(ask())

    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(go_on) for _ in range(4)]
        try:
            yield answers
        finally:
            is_over.set()
    for one in asked:
        one.result()


def test_another_version_is_served_without_a_lost_request_and_a_broken_one_is_not(start, trained, image, tmp_path):
    model = tmp_path / "birds" / "model"
    shutil.copytree(trained / "model", model)
    server = start(f"model={model}", "serve.precision=fp32", "serve.max_batch_size=1")
    first = server.score(image).json
    with asking(lambda: server.score(image)) as answers:
        version = changed(model, 50.0)
        server.process.send_signal(signal.SIGHUP)
        server.said(f"serving     birds {version}")
        until(lambda: answers[-1].json["model"]["version"] == version)
        (model / "model.safetensors").write_bytes(b"broken")
        server.process.send_signal(signal.SIGHUP)
        server.said(rf"the new version is not served, birds {version} still is: CheckpointError: .*differs from what")
        num_answers = len(answers)
        until(lambda: len(answers) > num_answers + 8)
    assert Counter(answer.status for answer in answers) == {200: len(answers)}
    shares = {answer.json["model"]["version"]: answer.json["probabilities"] for answer in answers}
    assert set(shares) == {first["model"]["version"], version}
    for answer in answers:
        assert answer.json["probabilities"] == shares[answer.json["model"]["version"]], "each is of one version"
    assert shares[first["model"]["version"]] == first["probabilities"] != shares[version]
    page = server.ask("GET", "/metrics").body.decode()
    assert 'runner_swaps_total{outcome="done"} 1.0' in page
    assert 'runner_swaps_total{outcome="failed"} 1.0' in page
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)  # what replaces it has the version that is served, not the broken folder
    until(lambda: server.metric("runner_worker_deaths_total") == 1)
    assert server.score(image).json["probabilities"] == shares[version]
    assert server.stop(signal.SIGINT) == 0


def test_onnx_and_bf16_give_the_same_labels(start, trained, image):
    expected = start(f"model={trained}", "serve.precision=fp32").score(image).json
    for rules in (("serve.format=onnx", "serve.workers=2"), ("serve.precision=bf16",)):
        server = start(f"model={trained}", *rules)
        found = server.score(*form(image, image)).json["results"][0]
        assert found["label"] == expected["label"]
        assert list(found["probabilities"].values()) == pytest.approx(
            list(expected["probabilities"].values()), abs=0.02
        )
        assert server.stop() == 0


def test_what_cannot_be_served_is_refused_before_it_listens_or_at_once(trained, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="no such folder"):
        serve.run([f"model={tmp_path / 'none'}", "serve.port=0"])
    with pytest.raises(ConfigError, match=r"'nobody': no installed package offers it"):
        serve.run([f"model={trained}", "serve.port=0", "serve.entry=nobody"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServeError, match="can't listen at 127"):
        serve.run([f"model={trained}", f"serve.port={taken.getsockname()[1]}"])
    monkeypatch.setenv("TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16 ASCII") as refused:
        serve.run([f"model={trained}", "serve.token_variable=TOKEN"])
    assert "short" not in str(refused.value)
    with pytest.raises(ConfigError, match="not the token") as refused:
        serve.run([f"model={trained}", "serve.token_variable=se-cret"])
