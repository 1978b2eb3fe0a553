from __future__ import annotations

import hashlib
import io
import threading
from email.message import Message
from http.client import IncompleteRead
from types import SimpleNamespace
from urllib.error import HTTPError, URLError

import pytest
import torch
from torchvision.models import ResNet18_Weights

from runner.base.errors import InvalidModelError
from runner.model.catalogue import cached_path, fetch_url
from runner.model.published import cached_weights, fetch

WEIGHTS = ResNet18_Weights.IMAGENET1K_V1


class Response(io.BytesIO):
    def info(self) -> Message:
        return Message()


def serve(monkeypatch, answer):
    def open_url(request):
        assert request.full_url.endswith(".pth")
        if isinstance(answer, Exception):
            raise answer
        return Response(answer)

    monkeypatch.setattr(torch.hub, "urlopen", open_url)


def test_the_cache_is_torch_hubs(hub_cache):
    assert cached_weights(WEIGHTS) is None
    assert cached_path(WEIGHTS.url) == hub_cache / "resnet18-f37072fd.pth"


def test_a_file_in_the_cache_is_taken(hub_cache):
    (hub_cache / "resnet18-f37072fd.pth").write_bytes(b"x")
    assert fetch(WEIGHTS).read_bytes() == b"x"


def test_a_download_lands_in_the_cache(hub_cache, monkeypatch, caplog):
    content = b"weights"
    digest = hashlib.sha256(content).hexdigest()
    weights = SimpleNamespace(url=f"https://example.org/models/net-{digest[:8]}.pth", name="TEST_V1")
    serve(monkeypatch, content)
    with caplog.at_level("INFO", logger="runner"):
        path = fetch_url(weights.url, weights.name)
    assert path.read_bytes() == content
    assert [file.name for file in hub_cache.glob("[!.]*")] == [f"net-{digest[:8]}.pth"]
    assert f"downloading {weights.url} to {path}" in caplog.text


def test_of_several_processes_one_downloads(hub_cache, monkeypatch):
    weights = SimpleNamespace(
        url=f"https://example.org/net-{hashlib.sha256(b'weights').hexdigest()[:8]}.pth", name="V1"
    )
    asked, may_answer = [], threading.Event()

    def open_url(request):
        asked.append(request)
        may_answer.wait(20)
        return Response(b"weights")

    monkeypatch.setattr(torch.hub, "urlopen", open_url)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(fetch_url(weights.url, weights.name).read_bytes())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    may_answer.set()
    for thread in threads:
        thread.join()
    assert (got, len(asked)) == ([b"weights"] * 4, 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (URLError("Name or service not known"), "Name or service not known"),
        (HTTPError(WEIGHTS.url, 403, "Forbidden", Message(), None), "HTTP Error 403: Forbidden"),
        (IncompleteRead(b"12", 10), "IncompleteRead"),
        (ConnectionResetError(104, "Connection reset by peer"), "the other side closed the connection"),
        (TimeoutError("timed out"), "timed out"),
        (b"<html>log in first</html>", "invalid hash value"),
    ],
)
def test_a_failed_download_names_the_address_the_file_and_the_folder(answer, reason, hub_cache, monkeypatch):
    serve(monkeypatch, answer)
    with pytest.raises(InvalidModelError, match=reason) as caught:
        fetch(WEIGHTS)
    message = str(caught.value)
    assert WEIGHTS.url in message
    assert f"place it as resnet18-f37072fd.pth in {hub_cache}" in message
    assert caught.value.__cause__ is not None
    assert list(hub_cache.glob("[!.]*")) == []


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidModelError, match="a part of this path is a file"):
        fetch(WEIGHTS)
