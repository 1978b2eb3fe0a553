"""What the cell of a notebook shows of a training: docs/tutorial.ipynb is run, and its messages are looked at."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from runner.tools import notebook
from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs/tutorial.ipynb"


class WatchedClient(NotebookClient):
    """Runs a notebook and keeps what its cells have drawn in place of what was there before."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.redrawn: list[str] = []

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.redrawn.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> WatchedClient:
    place = tmp_path_factory.mktemp("notebook")
    subprocess.run([sys.executable, ROOT / "docs/draw_photos.py"], cwd=place, check=True)
    own = {name: str(place / "own") for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**own, "PATH": path, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}.items():
            patch.setenv(name, value)
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = WatchedClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(place)}})
        client.execute()
    return client


def cell_with(client: WatchedClient, code: str) -> Any:
    return next(cell for cell in client.nb.cells if cell.cell_type == "code" and code in cell.source)


@pytest.mark.long
def test_the_notebook_trains_and_predicts(executed):
    place = Path(executed.resources["metadata"]["path"])
    imported = "".join(output.text for output in cell_with(executed, "dataset import").outputs)
    assert "unreadable: photos/sun/broken.jpg" in imported
    (best,) = cell_with(executed, "result.best").outputs
    assert "val_top1" in best.data["text/plain"]
    (guesses,) = cell_with(executed, "load_model").outputs
    assert set(re.findall(r"\d\.jpg", guesses.data["text/plain"])) == {"1.jpg", "2.jpg", "3.jpg"}
    (frame,) = cell_with(executed, "IFrame").outputs
    assert (place / re.search(r'src="([^"]+report\.html)"', frame.data["text/html"])[1]).is_file()


@pytest.mark.long
def test_the_cell_shows_progress_and_curves_that_are_redrawn_in_place(executed):
    displays = [output for output in cell_with(executed, "runner.fit").outputs if output.output_type == "display_data"]
    assert len(displays) == 1
    assert "<progress" not in displays[0].data["text/html"]  # it is removed at the end; the curves stay
    assert displays[0].data["text/html"].count("data:image/svg+xml") == 2
    assert any('<progress value="6" max="9">' in page and "epoch 2/6  6/9  loss" in page for page in executed.redrawn)
    curves = [re.findall(r"(\w+) over (\d+) epochs", page) for page in executed.redrawn]
    assert "<figcaption>Loss</figcaption>" in displays[0].data["text/html"]
    for epoch in range(1, 7):
        assert [("Loss", str(epoch)), ("Accuracy", str(epoch))] in curves


@pytest.mark.long
def test_each_message_of_the_log_is_in_the_cell_once(executed):
    outputs = cell_with(executed, "runner.fit").outputs
    shown = "".join(output.text for output in outputs if output.output_type == "stream").splitlines()
    (log,) = Path(executed.resources["metadata"]["path"]).glob("outputs/*/*/logs/rank_0.log")
    records = log.read_text(encoding="utf-8").splitlines()
    messages = [re.sub(r"^\S+ \S+ (INFO|WARNING) ", "", record) for record in records]
    assert len(messages) > 15
    lost_or_doubled = [message for message in messages if shown.count(message) != messages.count(message)]
    assert lost_or_doubled == []
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_outside_of_a_notebook_nothing_is_drawn():
    assert not notebook.is_in_notebook()
    with notebook.shown_in_cell() as draw_curves:
        assert draw_curves is None


def test_curves_that_cannot_be_drawn_end_no_training(tmp_path, caplog, monkeypatch):
    def draw(self: notebook.NotebookCell, *, is_new: bool = False) -> None:
        if not is_new:
            raise OSError("the notebook is gone")

    monkeypatch.setattr(notebook.NotebookCell, "_draw", draw)
    with caplog.at_level(logging.WARNING, logger="runner"):
        notebook._draw_curves(notebook.NotebookCell(), tmp_path)
    assert "the curves can't be drawn: OSError: the notebook is gone" in caplog.text
