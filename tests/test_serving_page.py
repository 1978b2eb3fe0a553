"""docs/serving.md: its commands do what it says, from the photos to the answered request."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_from_the_photos_to_the_answered_request(tmp_path, write_image):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    for number in range(32):
        write_image(tmp_path / "photos" / ("finch", "wren")[number % 2] / f"{number // 2}.png", number)
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A line of its own after each answer; the end of the server is waited for even if a command fails.
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + re.sub(
        r"curl -fsS", r"curl -w '\\n' -fsS", commands.replace("8080", str(port))
    )
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": python, "PYTHONPATH": str(ROOT), "RUNNER_REGISTRY": str(tmp_path / "models")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ready, one, several, as_json, described, inferred = answers
    assert ready == {"ready": True}
    assert one == as_json
    assert one["model"] == several["model"] == {"name": "birds", "version": "1"}
    assert one["label"] in ("finch", "wren")
    assert [list(result["probabilities"]) for result in several["results"]] == [["finch", "wren"]] * 2
    assert described["parameters"]["classes"] == ["finch", "wren"]
    assert inferred["outputs"][1]["data"] == [several["results"][1]["label"]]
    assert 'runner_model_info{name="birds",version="1"} 1.0' in done.stdout
    assert "stopped     all requests that were accepted are answered" in done.stdout


def test_each_key_that_the_page_names_exists():
    from runner.config.schema.calls.of_serving import ServeRules

    named = set(re.findall(r"serve\.(\w+)", PAGE))
    assert len(named) > 15
    assert named <= set(ServeRules.model_fields)
