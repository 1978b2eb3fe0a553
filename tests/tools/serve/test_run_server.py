"""Under load: batches, a full queue, a worker that dies, another version, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.base.errors import CheckpointError, ConfigError, ServeError
from runner.base.files import sha256_of
from runner.base.stop import StopRequest
from runner.cli.call import read_own
from runner.cli.commands import serve
from runner.config.schema.calls.of_serving import ServeCall
from runner.tools.registry.folder_registry import FolderRegistry
from runner.tools.registry.versions import Draft
from runner.tools.serve.run_server import Service
from runner.tools.serve.run_server import serve as serve_until_stopped
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
    rules = (
        "serve.entry=waiting",
        "serve.max_batch_size=2",
        "serve.queue_size=3",
        "serve.max_images=3",
        "serve.name=birds",
    )
    return start(
        f"model={trained}", "serve.name=birds", *rules, PYTHONPATH=f"{site}{os.pathsep}{ROOT}", PLACE=str(tmp_path)
    )


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


def test_a_killed_worker_is_replaced_and_sigterm_answers_what_was_accepted(waiting, image, tmp_path):
    batches = tmp_path / "batches"
    (worker,) = waiting.workers()
    given = Path(f"/proc/{worker}/environ").read_bytes()
    assert b"\0GOMP_SPINCOUNT=10000\0" in given or b"\0OMP_WAIT_POLICY=" in given, "its threads let others run"
    with ThreadPoolExecutor(8) as clients:
        both = clients.submit(waiting.score, *form(image, image))
        until(batches.exists)
        os.kill(worker, signal.SIGKILL)
        waiting.said(rf"worker 0: process {worker} was ended by signal 9; another is started")
        # Each of the two is tried again, alone, lest one of them has killed the worker.
        until(lambda: len(batches.read_text().splitlines()) == 2)
        until(lambda: waiting.metric("runner_queue_images") == 1)
        queued = [clients.submit(waiting.score, image) for _ in range(2)]
        until(lambda: waiting.metric("runner_queue_images") == 3)
        full = waiting.score(image)
        assert (full.status, full.headers["Retry-After"]) == (429, "1")
        waiting.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(waiting.port))
        (tmp_path / "go").touch()
        answers = [one.result() for one in (both, *queued)]
    assert [answer.status for answer in answers] == [200] * 3
    assert {answer.json["label"] for answer in answers[1:]} == {"<script>"}
    assert [line.count("36") for line in batches.read_text().splitlines()] == [2, 1, 1, 2]
    assert waiting.process.wait(60) == 0
    until(lambda: "stopped     all requests that were accepted are answered\n" in waiting.lines)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def register(registry: FolderRegistry, card: dict[str, Any], weights: dict[str, torch.Tensor]) -> int:
    """Register a version of a model, and let the alias name it."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        save_file(weights, folder / "model" / "model.safetensors")
        digest = sha256_of(folder / "model" / "model.safetensors")
        (folder / "model" / "model.json").write_text(json.dumps({**card, "weights_sha256": digest}))

    facts = {"architecture": "x", "num_classes": 3, "best": card["best"], "metrics": {}}
    lineage = {"run": "x", "tags": {}}
    version = registry.add("birds", Draft(write=write, facts={**facts, "lineage": lineage}, card=lambda record: ""))
    registry.set_alias("birds", "champion", version)
    return version


@contextmanager
def asking(ask: Callable[[], Answered]) -> Iterator[list[Answered]]:
    """Ask from two clients, 50 times a second each, within the block."""
    answers: list[Answered] = []
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            answers.append(ask())
            is_over.wait(0.02)  # a core is left for the version that is loaded beside this

    with ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(go_on) for _ in range(2)]
        try:
            yield answers
        finally:
            is_over.set()
    for one in asked:
        one.result()


def test_another_version_is_served_without_a_lost_request_and_a_broken_one_is_not(start, trained, image, tmp_path):
    registry = FolderRegistry(tmp_path / "models")
    card = json.loads((trained / "model" / "model.json").read_text())
    weights = load_file(trained / "model" / "model.safetensors")
    assert register(registry, card, weights) == 1
    place = ("model=models:/birds@champion", f"registry.uri={tmp_path / 'models'}", "serve.watch_seconds=0.2")
    server = start(*place, "serve.precision=fp32", "serve.max_batch_size=1")
    with asking(lambda: server.score(image)) as answers:
        until(lambda: len(answers) > 8)
        bias = torch.tensor([50.0, 0.0, -50.0])
        assert register(registry, card, {**weights, "fc.bias": weights["fc.bias"] + bias}) == 2
        server.said("serving     birds 2")
        until(lambda: answers[-1].json["model"]["version"] == "2")
        assert register(registry, card, {name: one for name, one in weights.items() if name != "fc.bias"}) == 3
        server.said("the new version is not served, birds 2 still is: CheckpointError: .*fc.bias")
        (tmp_path / "models" / "birds" / "3" / "model" / "model.safetensors").write_bytes(b"broken")
        server.process.send_signal(signal.SIGHUP)
        server.said("the new version is not served, birds 2 still is: RegistryError: .*model.safetensors")
        num_answers = len(answers)
        until(lambda: len(answers) > num_answers + 8)
    assert Counter(answer.status for answer in answers) == {200: len(answers)}
    shares = {answer.json["model"]["version"]: answer.json["probabilities"] for answer in answers}
    assert set(shares) == {"1", "2"}
    assert shares["1"] != shares["2"]
    for answer in answers:
        assert answer.json["probabilities"] == shares[answer.json["model"]["version"]], "each is of one version"
    page = server.ask("GET", "/metrics").body.decode()
    assert 'runner_swaps_total{outcome="done"} 1.0' in page
    assert 'runner_swaps_total{outcome="failed"} 2.0' in page
    assert server.stop(signal.SIGINT) == 0


def test_what_cannot_be_served_is_refused(trained, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="no such folder"):
        serve.run([f"model={tmp_path / 'none'}", "serve.port=0"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServeError, match="can't listen at 127"):
        serve.run([f"model={trained}", f"serve.port={taken.getsockname()[1]}"])
    monkeypatch.setenv("TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16 ASCII") as refused:
        serve.run([f"model={trained}", "serve.token_variable=TOKEN"])
    assert "short" not in str(refused.value)
    with pytest.raises(ConfigError, match="there is no such file"):
        serve.run([f"model={trained}", f"serve.token_file={tmp_path / 'none'}"])
    with pytest.raises(ConfigError, match="not the token"):
        serve.run([f"model={trained}", "serve.token_variable=se-cret"])


def test_what_is_not_answered_within_the_time_of_grace_is_said(monkeypatch, messages, image):
    """Without a worker: an image waits for ever."""

    async def load(service):
        await asyncio.sleep(0)

    monkeypatch.setattr(Service, "load", load)
    monkeypatch.setattr(Service, "_num_ready", lambda service: 1)
    monkeypatch.setattr(Service, "current", SimpleNamespace(name="birds", version="1"))
    call = read_own("serve", ServeCall, ["model=x", "serve.port=0", "serve.drain_seconds=1", "serve.name=birds"])

    def ask() -> None:
        until(lambda: any("address" in message for message in messages))
        port = next(int(message.rpartition(":")[2]) for message in messages if "address" in message)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {len(image)}\r\n\r\n"
            connection.sendall(head.encode() + image)
            connection.settimeout(0.5)
            try:
                with pytest.raises(TimeoutError):
                    connection.recv(1000)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
            connection.settimeout(30)
            assert b"500 Internal Server Error" in connection.recv(1000)

    with ThreadPoolExecutor(1) as clients, StopRequest() as stop:
        asked = clients.submit(ask)
        assert serve_until_stopped(call, stop) is False
        asked.result()
    assert any("1 requests that were accepted were not answered within serve.drain_seconds" in one for one in messages)
