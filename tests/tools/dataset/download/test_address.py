from __future__ import annotations

import base64
import json
import socket

import pytest

from runner.base.errors import ConfigError, DownloadError
from runner.tools.dataset.download import address
from runner.tools.dataset.download.address import address_of
from tests.tools.dataset.download.archive_server import serving
from tests.tools.dataset.download.test_transfer import left, pinned

SECRETS = "?X-Amz-Signature=CANARY"


def test_what_is_shown_holds_no_secret():
    found = address_of("https://anna:CANARY@host:8443/a%20b/ü c.zip?sig=CANARY#frag")
    assert found.shown == "https://host:8443/a%20b/ü c.zip"
    assert found.url == "https://host:8443/a%20b/%C3%BC%20c.zip?sig=CANARY"
    assert found.authorization == f"Basic {base64.b64encode(b'anna:CANARY').decode()}"


def test_secrets_are_sent_and_neither_shown_nor_written(served_tls, imported, tmp_path, capfd, caplog):
    url = served_tls.url.replace("https://", "https://anna:CANARY@") + SECRETS
    output = imported(url)
    path, headers = served_tls.requests[0]
    assert path.endswith(SECRETS)
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'anna:CANARY').decode()}"
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"CANARY" in content for content in written)
    assert json.loads((output.parent / "photos.import.json").read_text())["input"] == served_tls.url
    served_tls.status = 404
    with pytest.raises(DownloadError) as caught:
        imported(url, f"output={tmp_path / 'other'}")
    assert "CANARY" not in str(caught.value) + "".join(capfd.readouterr()) + caplog.text


def test_an_unfinished_file_holds_no_secret(served_tls, imported, tmp_path):
    served_tls.break_after = [50_000, 0, 0, 0, 0]
    url = served_tls.url.replace("https://", "https://anna:CANARY@") + SECRETS
    with pytest.raises(DownloadError, match="are kept"):
        imported(url)
    state = tmp_path / "work" / ".photos.download" / "state.json"
    assert state.exists()
    assert "CANARY" not in state.read_text()


def test_redirects_are_followed_but_not_with_the_password(served_tls, imported, archive, tmp_path):
    with serving(tmp_path / "own.pem") as other:
        other.content = archive
        served_tls.status, served_tls.location = 302, other.url
        imported(served_tls.url.replace("https://", "https://anna:secret@"))
        assert "Authorization" in served_tls.requests[0][1]
        assert "Authorization" not in other.requests[0][1]


def test_a_redirect_to_http_is_not_followed(served_tls, served, imported, tmp_path):
    served_tls.status, served_tls.location = 301, served.url
    with pytest.raises(DownloadError, match=r"redirects to http://…, where others on the network could replace"):
        imported(served_tls.url)
    assert served.requests == []
    assert left(tmp_path / "work" / "photos") == []


@pytest.mark.parametrize("location", ["/again", "file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "http://[", ""])
def test_redirects_without_end_or_elsewhere(served, imported, location):
    served.status, served.location = 302, location
    with pytest.raises(DownloadError):
        imported(served.url, pinned(served))
    assert len(served.requests) <= 6


def test_an_untrusted_certificate_is_refused(served_tls, imported, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DownloadError, match=r"certificate of the server is not trusted \(self.signed certificate"):
        imported(served_tls.url)
    assert served_tls.requests == []


def test_no_tls_at_all(served, imported):
    with pytest.raises(DownloadError, match="no secure connection with the server"):
        imported(served.url.replace("http://", "https://"))


def test_nobody_listens(imported):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(DownloadError, match=r"can't be reached .*nothing listens there"):
            imported(f"https://127.0.0.1:{port}/x.zip")


def test_no_such_host(imported, monkeypatch):
    def unknown(*_args, **_kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DownloadError, match=r"can't be reached \(this host name is not known here"):
        imported("https://nosuch.invalid/x.zip")


def test_a_server_that_says_nothing(imported, monkeypatch):
    monkeypatch.setattr(address, "TIMEOUT_SECONDS", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DownloadError, match=r"did not answer within 0\.05 seconds"):
            imported(f"https://127.0.0.1:{silent.getsockname()[1]}/x.zip")


def test_what_speaks_no_http(imported, served, monkeypatch):
    monkeypatch.setattr("tests.tools.dataset.download.archive_server._Handler.send_response", lambda *_: None)
    with pytest.raises(DownloadError, match="the answer can't be understood"):
        imported(served.url, pinned(served))


def test_proxies_of_the_environment_are_asked(served, imported, monkeypatch):
    monkeypatch.setenv("http_proxy", served.url.rpartition("/")[0])
    imported("http://nosuch.invalid/photos.zip", pinned(served))
    assert served.requests[0][0] == "http://nosuch.invalid/photos.zip"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["input=http://host/x.zip"], "sha256 = null: over http:// others on the network can replace the file"),
        (["input=http://a:b@host/x.zip", f"sha256={'0' * 64}"], "would send the password unencrypted"),
        (["input=https:///x.zip"], "is no address; expected https://HOST/PATH"),
        (["input=https://host:port/x.zip"], "is no address"),
        (["input=https://[::1/x.zip"], "is no address"),
        (["input=https://host/x.csv", "format=csv"], "at an address, only zip and tar archives are read"),
        (["input=s3://bucket/x.zip"], "is a remote address, but only local paths"),
        (["input=file:///x.zip"], "without file://"),
        (["input=x.zip", "sha256=abc"], "must be 64 hexadecimal digits"),
        (["input=https://host/x.zip", "output=s3://x"], "output = 's3://x': is a remote address"),
    ],
)
def test_mistakes_in_the_call(argv, said):
    from runner.cli.commands.dataset import import_

    with pytest.raises(ConfigError) as caught:
        import_.run(["output=out", *argv])
    assert said in str(caught.value)
    assert "a:b@" not in str(caught.value).replace("a:b@host", "")
