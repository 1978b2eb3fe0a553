"""The text of the page; how it looks and loads is for test_browser."""

from __future__ import annotations

import json
import re
import shutil

import pytest

import runner
from runner.base.errors import CheckpointError
from runner.tools.report.write import render, write_report
from runner.tools.runs.past import read_run
from tests.made_runs import SMALL, make_run, make_run_on_photos, row

NASTY = ("<script>alert(1)<", "🐜 ants & bees", '\'"; x="y')


def test_names_from_data_are_escaped(tmp_path):
    run = make_run_on_photos(tmp_path / "run", tmp_path / "<b>photos", NASTY)
    page = render(read_run(run))
    assert "<script" not in page
    assert "<b>photos" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page
    assert "🐜 ants &amp; bees" in page


def test_all_sections_are_there(tmp_path):
    run = make_run_on_photos(tmp_path / "run", tmp_path / "photos", ("ants", "bees"), test={"count": 7, "top1": 0.25})
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "warnings": ["data.val: 1 of 5 images were skipped: <a>"]}))
    log = run / "logs" / "rank_0.log"
    warning = "2026-11-20 10:00:00,123 WARNING slow <disk>\n"
    log.write_text(f"2026-11-20 10:00:00,123 INFO all is well\n{warning}{warning}continued\n")
    page = render(read_run(run))
    text = " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())
    for words in (
        "resnet18 on photos completed",
        "50.00% 2 of 4 validation images",
        "Test top-1 25.00% 7 images",
        "Best top-1 accuracy: 90.00%, after epoch 2 of 2.",
        "It took 2 min 05 s on cpu, with 1 process.",
        "Training steps 18 s · 66.7%",
        "Waiting for data 2 s · 7.4%",
        "Evaluation 4 s · 14.8%",
        "Waiting for checkpoints 1 s · 3.7%",
        "Everything else 2 s · 7.4%",
        "ants bees 1 50.0%",
        "All 2 mistakes",
        "taken for ants , 70.0%",
        "runs repeat run=",
        "data.val: 1 of 5 images were skipped: &lt;a&gt; slow &lt;disk&gt; 2 times",
        "data.batch_size 2",
        "torch version 2.15.0",
    ):
        assert words in text, words
    assert page.count("data:image/svg+xml") == 4
    assert page.count("data:image/jpeg") == 2


@pytest.mark.parametrize(("num_classes", "is_told"), [(5, False), (6, True)])
def test_top5_is_shown_for_more_than_five_classes(tmp_path, num_classes, is_told):
    classes = tuple(f"class {number}" for number in range(num_classes))
    page = render(read_run(make_run_on_photos(tmp_path / "run", tmp_path / "photos", classes)))
    assert ("<dt>Top-5</dt>" in page) == is_told
    assert ("validation, top-5" in page) == is_told


def test_nothing_outside_of_the_file_is_asked_for(tmp_path):
    page = render(read_run(make_run_on_photos(tmp_path / "run", tmp_path / "photos", ("ants", "bees"))))
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_the_same_run_gives_the_same_curves(tmp_path):
    run = read_run(make_run(tmp_path / "run", rows=(row(1), row(2))))
    curves = [re.findall(r"data:image/svg\+xml;base64,\S+\"", render(run)) for _ in range(2)]
    assert curves[0] == curves[1]


def test_many_classes_are_a_picture_and_the_weakest_are_listed(tmp_path):
    classes = tuple(f"class {number:03}" for number in range(120))
    page = render(read_run(make_run_on_photos(tmp_path / "run", tmp_path / "photos", classes)))
    assert 'alt="Confusion matrix of 120 classes"' in page
    assert "The 100 with the lowest F1 of 120" in page
    assert "24 of 120 mistakes" in page
    assert len(page) < 500_000


def test_data_that_is_missing_or_changed_is_named(tmp_path):
    photos = tmp_path / "photos"
    run = make_run_on_photos(tmp_path / "run", photos, ("ants", "bees"))
    (photos / "val" / "ants" / "0.png").rename(photos / "val" / "ants" / "2.png")
    page = render(read_run(run))
    assert "the data set has changed since the run" in page
    assert "no image" in page
    shutil.rmtree(photos)
    assert "the data can&#39;t be opened" in render(read_run(run))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"status": "running", "end": None, "best": None}, "No epoch has been finished"),
        ({"status": "failed", "best": None, "error": {"name": "DeviceError", "message": "<gone>"}}, "&lt;gone&gt;"),
        ({"status": "stopped"}, "runner resume run="),
        ({"name": "<base>", "group": "g", "tags": {"a": 1, "b": "x"}}, "&lt;base&gt; · group g · a=1, b=x</p>"),
        ({"notes": "first\nsecond"}, '<p class="lead notes">first\nsecond</p>'),
    ],
)
def test_a_run_without_epochs_and_evaluation_has_a_report(tmp_path, facts, words):
    page = render(read_run(make_run(tmp_path / "run", **facts)))
    assert words in page
    assert "has not been evaluated image by image" in page


def test_rows_of_before_and_of_averaged_weights(tmp_path):
    old = {key: value for key, value in row(1).items() if key not in ("evaluation_seconds", "checkpoint_seconds")}
    best = {"metric": "val_loss", "value": 0.5, "epoch": 2, "weights": "ema"}
    ema = {"val_ema_loss": 0.5, "val_ema_top1": 0.75, "val_ema_top5": 1.0}
    page = render(read_run(make_run(tmp_path / "run", rows=(old, row(2, **ema)), best=best)))
    assert "Where the time went" not in page
    assert "validation loss of the averaged weights: 0.5000" in page
    assert "75.00%" in page


def test_damaged_predictions_are_named(tmp_path):
    run = make_run_on_photos(tmp_path / "run", tmp_path / "photos", ("ants", "bees"))
    (run / "evaluation" / "predictions.csv").write_text("image,label\n1,ants\n")
    with pytest.raises(CheckpointError, match=r"predictions\.csv is damaged"):
        render(read_run(run))


@pytest.mark.report
def test_each_run_ends_with_its_report_and_none_fails_for_it(tmp_path, monkeypatch, caplog):
    config = runner.load_config([*SMALL, f"output_dir={tmp_path}"])
    page = (runner.fit(config).run_dir / "report.html").read_text(encoding="utf-8")
    assert 'class="status completed"' in page

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("runner.tools.report.write.write_report", full)
    run_dir = runner.fit(config).run_dir
    assert json.loads((run_dir / "run.json").read_text())["status"] == "completed"
    assert "the report can't be written: OSError: no space left on device" in caplog.text


def test_the_report_is_replaced_as_a_whole(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "report.html").write_text("old")
    write_report(run, run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
