from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.cli.commands.dataset import import_ as dataset_import
from runner.tools.dataset.download import transfer
from tests.tools.dataset.download.archive_server import Served, make_certificate, serving


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(transfer, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def archive(tmp_path, write_image) -> bytes:
    """A zip of four photos, stored, some 100 kB, so that it comes in several reads."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for number, label in enumerate(["ants", "ants", "bees", "bees"]):
            file = write_image(tmp_path / "made" / f"{number}.bmp", seed=number, size=(100, 100))
            packed.write(file, f"photos/{label}/{number}.bmp")
    return buffer.getvalue()


@pytest.fixture
def served(archive) -> Iterator[Served]:
    with serving() as served:
        served.content = archive
        yield served


@pytest.fixture
def served_tls(archive, tmp_path, monkeypatch) -> Iterator[Served]:
    """By a certificate that is trusted, but for tests that delete SSL_CERT_FILE."""
    certificate = make_certificate(tmp_path)
    if certificate is None:
        pytest.skip("no openssl here to make a certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(certificate) as served:
        served.content = archive
        yield served


@pytest.fixture
def imported(tmp_path) -> Callable[..., Path]:
    """Imports from an address; the output."""

    def run(url: str, *argv: str) -> Path:
        output = tmp_path / "work" / "photos"
        output.parent.mkdir(exist_ok=True)
        dataset_import.run(["workers=0", f"input={url}", f"output={output}", *argv])
        return output

    return run
