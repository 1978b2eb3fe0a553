from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.cli.call import read_own
from runner.cli.commands import predict
from runner.config.schema.calls.of_serving import ServeCall
from runner.tools.serve.endpoints import Endpoints
from runner.tools.serve.image_queue import ImageQueue
from runner.tools.serve.serving_metrics import ServingMetrics
from tests.conftest import AWKWARD_CLASSES
from tests.tools.serve.conftest import form

SHARES = tuple(f"Scored Probabilities_{name}" for name in AWKWARD_CLASSES)


@pytest.fixture(scope="module")
def files(trained) -> list[Path]:
    return sorted((trained.parents[2] / "photos" / "val").rglob("*.png"))[:8]


@pytest.fixture(scope="module")
def predicted(trained, files, tmp_path_factory) -> dict[int, list[tuple[str, list[np.float32]]]]:
    """By batch size, the label and the probabilities that `predict` gives each image."""
    folder, found = tmp_path_factory.mktemp("predicted"), {}
    (folder / "list.txt").write_text("\n".join(map(str, files)))
    for size in (1, 8):
        output = folder / f"{size}.jsonl"
        argv = [f"model={trained / 'model'}", f"input={folder / 'list.txt'}", f"output={output}"]
        predict.run([*argv, f"batch_size={size}", "precision=fp32"])
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        found[size] = [(row["Scored Labels"], [np.float32(row[name]) for name in SHARES]) for row in rows]
    return found


def as_predicted(result) -> tuple[str, list[np.float32]]:
    assert tuple(result["probabilities"]) == AWKWARD_CLASSES
    return result["label"], [np.float32(share) for share in result["probabilities"].values()]


def test_one_image_is_scored_as_predict_scores_it_to_the_last_bit(served, files, predicted):
    for file, expected in zip(files, predicted[1], strict=True):
        answer = served.score(file.read_bytes(), "image/png")
        assert answer.status == 200
        assert as_predicted(answer.json) == expected
        assert set(answer.json) == {"label", "probabilities", "model"}
        assert answer.json["model"]["name"] == "birds"


def test_a_form_and_json_are_scored_as_a_batch_of_predict_to_the_last_bit(served, files, predicted):
    contents = [file.read_bytes() for file in files]
    texts = [base64.b64encode(content).decode() for content in contents]
    for body, kind in (form(*contents), (json.dumps({"images": texts}).encode(), "application/json")):
        answer = served.score(body, kind)
        assert answer.status == 200
        assert [as_predicted(result) for result in answer.json["results"]] == predicted[8]
    one = served.score(json.dumps({"image": texts[0]}).encode(), "application/json; charset=utf-8")
    assert as_predicted(one.json) == predicted[1][0]


def test_the_open_inference_protocol(served, files, predicted):
    contents = [file.read_bytes() for file in files]
    described = served.ask("GET", "/v2/models/birds").json
    assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert served.ask("GET", "/v2").json["models"] == ["birds"]
    (version,) = described["versions"]
    tensor = {"name": "image", "shape": [8], "datatype": "BYTES"}
    texts = [base64.b64encode(content).decode() for content in contents]
    body = json.dumps({"id": "7", "inputs": [{**tensor, "data": texts}]}).encode()
    in_json = served.ask("POST", "/v2/models/birds/infer", body)
    binary = b"".join(len(content).to_bytes(4, "little") + content for content in contents)
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(binary)}}]}).encode()
    path, length = f"/v2/models/birds/versions/{version}/infer", str(len(head))
    in_binary = served.ask("POST", path, head + binary, inference_header_content_length=length)
    for answer in (in_json, in_binary):
        assert answer.status == 200
        shares, labels = answer.json["outputs"]
        assert shares["shape"] == [8, 3]
        rows = np.array(shares["data"], np.float32).reshape(8, 3).tolist()
        assert [
            (label, [np.float32(x) for x in row]) for label, row in zip(labels["data"], rows, strict=True)
        ] == predicted[8]
    assert (in_json.json["id"], in_json.json["model_version"]) == ("7", version)
    body = json.dumps({"inputs": [{**tensor, "data": texts}], "outputs": [{"name": "label"}]}).encode()
    (only,) = served.ask("POST", "/v2/models/birds/infer", body).json["outputs"]
    assert only["data"] == [label for label, _ in predicted[8]]


def test_health_and_metrics(served, files):
    assert served.ask("GET", "/v2/health/live").json == {"live": True}
    assert served.ask("GET", "/v2/health/ready").json == {"ready": True}
    assert served.ask("GET", "/v2/models/birds/ready").status == 200
    assert served.ask("GET", "/v2/models/fish/ready").status == 404
    before = served.metric("runner_images_total")
    served.score(files[0].read_bytes())
    assert served.metric("runner_images_total") == before + 1
    assert served.metric("runner_workers_ready") == 1
    assert served.metric("runner_queue_images") == 0


def test_no_address_is_a_file_and_the_log_shows_no_request(served, files):
    for path in ("/../../etc/passwd", "/%2e%2e/etc/passwd", "/page.html", "/static/", "//etc/passwd", "/docs"):
        assert served.ask("GET", path).status == 404, path
    assert served.ask("GET", "/score").status == 405
    served.score(*form(files[0].read_bytes()))
    served.ask("POST", "/score?secret-query", b"secret-body", content_type="secret/type")
    assert "secret" not in "".join(served.lines)
    assert "access-control-allow-origin" not in served.ask("GET", "/v2", origin="https://evil.example").headers


class NothingServed:
    """A server before its first version is ready."""

    current = None
    is_ready = False

    def __init__(self) -> None:
        self.queue = ImageQueue(1, 1, 0.0)
        self.metrics = ServingMetrics(lambda: 0, lambda: 0)


def ask(app, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Call an application as uvicorn does."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b"", "root_path": ""}
    asyncio.run(app(scope, receive, send))
    answered = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return sent[0]["status"], answered


def test_a_token_is_asked_for_where_one_is_set_and_cors_is_off_where_none_is_allowed():
    call = read_own("serve", ServeCall, ["model=x", "serve.cors=[https://shop.example]"])
    app = Endpoints(NothingServed(), call.serve).application("0123456789abcdef")
    for path in ("/score", "/metrics", "/v2", "/v2/models/x/infer", "/none"):
        for wrong in ("Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "0123456789abcdef", "Bearer \xff", ""):
            status, headers = ask(app, "GET", path, authorization=wrong)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert ask(app, "GET", path)[0] == 401
        assert ask(app, "GET", path, authorization="Bearer 0123456789abcdef")[0] != 401
    assert ask(app, "GET", "/v2/health/live")[0] == 200
    assert ask(app, "GET", "/v2/health/ready")[0] == 503
    assert ask(app, "GET", "/")[0] == 200
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    status, headers = ask(app, "OPTIONS", "/score", origin="https://shop.example", **asked)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://shop.example")
    assert ask(app, "OPTIONS", "/score", origin="https://evil.example", **asked)[0] == 400
    closed = read_own("serve", ServeCall, ["model=x"])
    app = Endpoints(NothingServed(), closed.serve).application(None)
    assert "access-control-allow-origin" not in ask(app, "GET", "/v2", origin="https://shop.example")[1]
    assert ask(app, "POST", "/score")[0] == 503
