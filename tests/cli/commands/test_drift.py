from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import CheckpointError, DriftError, InvalidDatasetError
from runner.cli.commands import drift, evaluate
from runner.run.package import read_package


@pytest.fixture
def photos(trained) -> Path:
    return trained.parents[2] / "photos" / "val"


def drift_of(capsys, *argv: str) -> dict:
    assert drift.run([*argv, "format=json", "precision=fp32", "workers=0"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_validation_images_themselves_have_not_drifted(trained, photos, capsys):
    # In the batches of the evaluation, so that even the bits of the confidences are the same.
    report = drift_of(capsys, f"run={trained}", f"input={photos}", "batch_size=8")
    assert (report["num_images"], report["num_reference"], report["drifted"]) == (21, 21, [])
    assert {name: one["psi"] for name, one in report["features"].items()} == dict.fromkeys(report["features"], 0)
    assert report["least_images"] is None and report["has_few_images"], "21 images are too few for a reference"


@pytest.fixture
def bright(tmp_path) -> Path:
    folder = tmp_path / "bright"
    folder.mkdir()
    for number in range(12):
        pixels = np.full((72, 48, 3), 250 - number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def test_what_has_changed_is_named_and_fails_if_asked(trained, bright, capsys):
    with pytest.raises(DriftError, match=r"^drifted from the reference: brightness, height, aspect_ratio"):
        drift.run([f"model={trained / 'model'}", f"input={bright}", "fail_on_drift=true", "workers=0"])
    shown = capsys.readouterr().out
    assert "12 images, compared with 21 of the validation" in shown
    assert "drifted: brightness, height, aspect_ratio" in shown
    assert "the validation has too few images for this threshold" in shown


def test_images_that_cannot_be_read_are_left_out(trained, bright, capsys, caplog):
    with caplog.at_level("WARNING", logger="runner"):
        report = drift_of(capsys, f"run={trained}", f"input={bright}")
    assert report["num_images"] == 12
    assert "1 of 13 images can't be scored and are left out; the first is broken.png: this is no image" in caplog.text
    for file in bright.glob("[0-9]*.png"):
        file.unlink()
    with pytest.raises(InvalidDatasetError, match=r"none of 1 images can be scored; the first is broken\.png"):
        drift.run([f"run={trained}", f"input={bright}", "workers=0"])


def test_evaluate_adds_a_reference_to_an_older_package(trained, photos, tmp_path, capsys):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    card = json.loads((run / "model" / "model.json").read_text())
    reference = card.pop("reference")
    (run / "model" / "model.json").write_text(json.dumps({**card, "format": 2}))
    with pytest.raises(CheckpointError, match=r"has no reference.*`evaluate run=DIR` adds it"):
        drift.run([f"run={run}", f"input={photos}"])
    assert evaluate.run([f"run={run}", f"data.val={photos.parent / 'test'}", f"output={tmp_path / 'elsewhere'}"]) == 0
    assert evaluate.run([f"run={run}", "split=test"]) == 0
    assert read_package(run).card.reference is None, "only its own validation images are its reference"
    assert evaluate.run([f"run={run}"]) == 0
    assert json.loads((run / "model" / "model.json").read_text()) == {**card, "format": 3, "reference": reference}
    capsys.readouterr()
    assert drift_of(capsys, f"run={run}", f"input={photos}")["drifted"] == []
