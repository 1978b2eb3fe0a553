from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from runner.base.errors import CheckpointError, ConfigError, DeviceError, InvalidDatasetError, OutputError
from runner.cli.commands import predict
from runner.tools.predict import score
from tests.conftest import AWKWARD_CLASSES, ROOT

SHARES = tuple(f"Scored Probabilities_{name}" for name in AWKWARD_CLASSES)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def photos(trained) -> Path:
    return trained.parents[2] / "photos" / "val"


def test_the_scores_are_those_of_the_evaluation(trained, photos, tmp_path):
    output = tmp_path / "scores.csv"
    assert predict.run([f"run={trained}", f"input={photos}", f"output={output}", "precision=fp32", "batch_size=8"]) == 0
    rows = rows_of(output)
    assert list(rows[0]) == ["path", "label", "Scored Labels", *SHARES, "error"]
    evaluated = rows_of(trained / "evaluation" / "predictions.csv")
    assert len(rows) == len(evaluated) == 21
    # EvalBatches and predict batch the same images together, so even the bits of the probabilities are the same.
    best = {row["path"]: (row["Scored Labels"], max(float(row[name]) for name in SHARES)) for row in rows}
    names = {row["path"]: str(Path(row["path"]).relative_to(photos)) for row in evaluated}
    keys = {name: f"'{name}" if name.startswith("=") else name for name in names.values()}
    assert {keys[names[row["path"]]]: (row["predicted"], float(row["probability"])) for row in evaluated} == best
    assert all(sum(float(row[name]) for name in SHARES) == pytest.approx(1) for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"], "nothing is left beside it"


def test_out_of_memory_says_what_to_try(trained, photos, tmp_path, monkeypatch):
    def too_much(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("runner.evaluation.per_image.Scorer.logits", too_much)
    with pytest.raises(DeviceError, match=r"out of memory on cpu with batch_size = 8; try batch_size=4: CUDA"):
        predict.run([f"run={trained}", f"input={photos}", f"output={tmp_path / 'scores.csv'}", "batch_size=8"])


def test_what_another_training_of_this_process_has_set_is_not_kept(trained, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        predict.run([f"run={trained}", f"input={photos}", f"output={tmp_path / 'scores.csv'}"])
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_package_alone_is_enough(trained, photos, tmp_path):
    shutil.copytree(trained / "model", tmp_path / "model")
    (tmp_path / "list.txt").write_text("\n".join(str(file) for file in sorted(photos.glob("*/0.png"))))
    output = tmp_path / "scores.jsonl"
    predict.run([f"model={tmp_path / 'model'}", f"input={tmp_path / 'list.txt'}", f"output={output}"])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["path"] for row in rows] == (tmp_path / "list.txt").read_text().splitlines()
    assert list(rows[0]) == ["path", "Scored Labels", *SHARES, "error"]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_read_gets_a_row_with_the_reason(trained, photos, tmp_path, workers, caplog):
    folder = tmp_path / 'in, "put"'
    folder.mkdir()
    for name in ("=cmd(),.png", "@x.png", "a\nb.png", "good.png", "🐜.png"):
        shutil.copy(next(photos.glob("*/1.png")), folder / name)
    (folder / "empty.jpg").touch()
    (folder / "page.jpg").write_text("<html>")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:60])
    (tmp_path / "list.csv").write_text("path,label\nmissing.png,x\ngood.png,y\n")
    output = tmp_path / "scores.csv"
    predict.run([f"run={trained}", f"input={folder}", f"output={output}", "batch_size=3", f"workers={workers}"])
    rows = {row["path"]: row for row in rows_of(output)}
    assert list(rows) == [
        "'=cmd(),.png",
        "'@x.png",
        "a\nb.png",
        "cut.png",
        "empty.jpg",
        "good.png",
        "page.jpg",
        "🐜.png",
    ]
    assert [name for name, row in rows.items() if row["error"]] == ["cut.png", "empty.jpg", "page.jpg"]
    assert rows["empty.jpg"]["error"] == "the file is empty (0 bytes)"
    assert all(not rows["page.jpg"][name] for name in ("Scored Labels", *SHARES))
    assert rows["good.png"][SHARES[0]] == rows["🐜.png"][SHARES[0]] != ""
    assert "3 of 8 images can't be read" in caplog.text


def test_a_list_may_name_what_is_not_there(trained, photos, tmp_path):
    (tmp_path / "list.csv").write_text(f"path,label\nmissing.png,wasp\n{AWKWARD_CLASSES[2]}/0.png,\n")
    output = tmp_path / "scores.parquet"
    predict.run([f"run={trained}", f"input={tmp_path / 'list.csv'}", f"root={photos}", f"output={output}"])
    import pyarrow.parquet

    first, second = pyarrow.parquet.read_table(output).to_pylist()
    assert (first["label"], first["Scored Labels"], first["error"]) == (
        "wasp",
        None,
        "can't be opened: there is no such file or folder",
    )
    assert (second["label"], second["error"]) == (None, None)


REFUSED = {
    "no model": (["run={tmp}"], CheckpointError, "holds no packaged model"),
    "no folder": (["run={tmp}/none"], CheckpointError, "there is no such folder"),
    "both": (["model={tmp}"], ConfigError, "not both"),
    "existing": (["output={tmp}/there.csv"], OutputError, "exists, and is not overwritten"),
    "no parent": (["output={tmp}/none/x.csv"], OutputError, "there is no folder"),
    "no place": (["output=/proc/x.csv"], OutputError, r"/proc/x\.csv\.partial can't be written"),
    "kind": (["output={tmp}/x.xlsx"], ConfigError, "must end in"),
    "typo": (["bacth_size=3"], ConfigError, r"no such key; did you mean batch_size\?"),
    "empty": (["input={tmp}/empty"], InvalidDatasetError, "no image in this folder"),
    "nothing": (["input={tmp}/none"], InvalidDatasetError, "there is no such file or folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_and_leaves_nothing(trained, photos, tmp_path, case):
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "empty").mkdir()
    typed, error, message = REFUSED[case]
    argv = {"run": str(trained), "input": str(photos), "output": f"{tmp_path}/scores.csv"}
    argv |= dict(item.format(tmp=tmp_path).split("=", 1) for item in typed)
    with pytest.raises(error, match=message):
        predict.run([f"{key}={value}" for key, value in argv.items()])
    assert {path.name: path.is_file() and path.read_text() for path in tmp_path.iterdir()} == {
        "there.csv": "mine",
        "empty": False,
    }


def test_a_damaged_or_newer_package_is_refused(trained, photos, tmp_path):
    model = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    card = json.loads((model / "model.json").read_text())
    argv = [f"model={model}", f"input={photos}", f"output={tmp_path / 'x.csv'}"]
    (model / "model.json").write_text(json.dumps({**card, "format": 99}))
    with pytest.raises(CheckpointError, match=r"has format 99, of a newer runner; this one reads up to 3: update it"):
        predict.run(argv)
    (model / "model.json").write_text(json.dumps(card))
    (model / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        predict.run(argv)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_it_goes_on_where_it_was_to_the_very_same_file(trained, photos, tmp_path, monkeypatch, suffix):
    argv = [f"run={trained}", f"input={photos}", "batch_size=4", "precision=fp32"]
    predict.run([*argv, f"output={tmp_path / 'whole'}{suffix}"])
    output = tmp_path / f"scores{suffix}"
    scored, calls = score._scored, []

    def dying(*args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return scored(*args)

    with monkeypatch.context() as patch:
        patch.setattr(score, "_scored", dying)
        with pytest.raises(KeyboardInterrupt):
            predict.run([*argv, f"output={output}"])
    assert not output.exists()
    partial = tmp_path / f"scores{suffix}.partial"
    partial.write_bytes(partial.read_bytes()[:-7])  # as a kill may leave it
    with pytest.raises(OutputError, match="resume it with resume=true, or remove it"):
        predict.run([*argv, f"output={output}"])
    with pytest.raises(OutputError, match=r"of another call \(other input\)"):
        predict.run([*argv, f"output={output}", "resume=true", f"input={photos.parent / 'test'}"])
    predict.run([*argv, f"output={output}", "resume=true"])
    if suffix != ".parquet":
        # Batches begin elsewhere after the cut, and their bits may differ in the last digit; the rows are the same.
        assert [line.split(b"Scored")[0] for line in output.read_bytes().splitlines()][:12] == [
            line.split(b"Scored")[0] for line in (tmp_path / f"whole{suffix}").read_bytes().splitlines()
        ][:12]
    else:
        import pyarrow.parquet

        tables = [pyarrow.parquet.read_table(file) for file in (output, tmp_path / "whole.parquet")]
        assert tables[0].column("path").to_pylist() == tables[1].column("path").to_pylist()
    assert {path.name for path in tmp_path.iterdir()} == {f"whole{suffix}", f"scores{suffix}"}


def test_a_request_to_stop_keeps_what_is_scored(trained, photos, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(800):
        (folder / f"{number:04}.png").symlink_to(next(photos.glob("*/0.png")))
    argv = [f"run={trained}", f"input={folder}", f"output={tmp_path / 'scores.csv'}", "batch_size=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "predict", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    partial = tmp_path / "scores.csv.partial"
    while not (partial.exists() and partial.stat().st_size > 2000):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "resume with resume=true" in err
    assert not (tmp_path / "scores.csv").exists()
    num_rows = len(rows_of(partial))
    assert 0 < num_rows < 800
    predict.run([*argv, "batch_size=64", "resume=true"])
    assert [row["path"] for row in rows_of(tmp_path / "scores.csv")] == [f"{number:04}.png" for number in range(800)]


def test_one_image_of_another_mode(trained, tmp_path):
    Image.new("LA", (50, 30), (10, 100)).save(tmp_path / "grey.png")
    predict.run([f"run={trained}", f"input={tmp_path / 'grey.png'}", f"output={tmp_path / 'x.csv'}"])
    (row,) = rows_of(tmp_path / "x.csv")
    assert row["path"] == str(tmp_path / "grey.png")
    assert row["Scored Labels"]
