from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from runner.base.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    InvalidDatasetError,
    NotLabeledDatasetError,
    OutputError,
)
from runner.cli.commands import evaluate
from tests.conftest import AWKWARD_CLASSES, ROOT

COUNTS = ("count", "correct", "correct_top5", "top1", "top5", "per_class", "confusion_matrix", "macro_average")


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def counts_of(folder: Path) -> dict:
    return {name: value for name, value in metrics_of(folder).items() if name in COUNTS}


@pytest.fixture
def photos(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained.parents[2] / "photos", tmp_path / "photos"))


@pytest.fixture
def run_dir(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_counts_are_those_of_the_training_for_any_batch_size(trained, tmp_path, batch_size):
    output = tmp_path / "result"
    assert evaluate.run([f"run={trained}", f"data.batch_size={batch_size}", f"output={output}"]) == 0
    assert counts_of(output) == counts_of(trained / "evaluation")
    assert metrics_of(output)["loss"] == pytest.approx(metrics_of(trained / "evaluation")["loss"], rel=1e-6)
    names = {"metrics.json", "per_class.csv", "confusion_matrix.csv", "confusion_matrix.png", "predictions.csv", "logs"}
    assert {path.name for path in output.iterdir()} == names


def test_other_images_under_the_same_names_are_warned_of(run_dir, photos, capsys):
    config = run_dir / "config.yaml"
    own = Path(yaml.safe_load(config.read_text())["data"]["root"])
    config.write_text(config.read_text().replace(str(own), str(photos)))
    shutil.rmtree(run_dir / "evaluation")
    assert evaluate.run([f"run={run_dir}"]) == 0
    assert "differences_from_training" not in metrics_of(run_dir / "evaluation")
    one, other = sorted((photos / "val").glob("*/*"))[:: len(list((photos / "val").glob("*/*"))) - 1]
    one.rename(photos / "x")
    other.rename(one)
    (photos / "x").rename(other)
    assert evaluate.run([f"run={run_dir}"]) == 0
    (said,) = metrics_of(run_dir / "evaluation")["differences_from_training"]
    assert said.startswith("data.val: files of its images ")
    # An older run knows names only.
    record = json.loads((run_dir / "run.json").read_text())
    del record["data"]["content"]
    (run_dir / "run.json").write_text(json.dumps(record))
    assert evaluate.run([f"run={run_dir}"]) == 0
    assert "differences_from_training" not in metrics_of(run_dir / "evaluation")
    one.unlink()
    assert evaluate.run([f"run={run_dir}"]) == 0
    (said,) = metrics_of(run_dir / "evaluation")["differences_from_training"]
    assert "more or fewer" in said


def test_two_processes_write_the_very_same_files(trained, tmp_path, run_cli):
    output = tmp_path / "result"
    several = ("dist.procs_per_node=2", "dist.sync_batchnorm=true")  # as the config of a run on many GPUs may say
    done = run_cli("evaluate", f"run={trained}", *several, f"output={output}")
    assert done.returncode == 0, done.stderr
    assert "launch      elastic (2 processes" in done.stdout
    assert "weighted average" in done.stdout
    for name in ("metrics.json", "predictions.csv", "per_class.csv", "confusion_matrix.csv"):
        assert (output / name).read_bytes() == (trained / "evaluation" / name).read_bytes(), name
    assert {path.name for path in (output / "logs").iterdir()} == {"rank_0.log", "rank_1.log", "launcher.log"}


def test_by_default_the_own_evaluation_is_repeated_in_its_place(run_dir, capsys):
    before = (run_dir / "evaluation" / "metrics.json").read_bytes()
    assert evaluate.run([f"run={run_dir}"]) == 0
    assert (run_dir / "evaluation" / "metrics.json").read_bytes() == before


def test_other_weights_and_splits_go_beside_it(run_dir):
    last = (run_dir / "checkpoints" / "last").read_text().strip()
    assert evaluate.run(["-m", f"run={run_dir}", "checkpoint=best,last", "split=val,test"]) == 0
    found = {path.parent.name: metrics_of(path.parent) for path in run_dir.glob("evaluation/**/metrics.json")}
    assert set(found) == {"evaluation", "test", last, f"{last}-test"}
    assert found[last]["weights"]["checkpoint"] == last
    assert [found[name]["count"] for name in ("evaluation", "test")] == [21, 9]


def test_a_refused_call_of_several_does_not_end_the_others(run_dir, capsys):
    with pytest.raises(CheckpointError, match="no checkpoint 'nope'"):
        evaluate.run(["-m", f"run={run_dir}", "checkpoint=nope,last"])
    assert (run_dir / "evaluation" / (run_dir / "checkpoints" / "last").read_text().strip()).is_dir()


@pytest.mark.parametrize("layout", ["data.root=…/val", "data.root=…", "data.val=…/val", "data=folder data.root=…/val"])
def test_a_folder_elsewhere_is_labelled_by_the_names_of_its_folders(trained, photos, tmp_path, layout):
    # Of the classes only the last two: by position they would be taken for the first two.
    shutil.rmtree(photos / "val" / AWKWARD_CLASSES[0])
    output = tmp_path / "result"
    assert evaluate.run([f"run={trained}", *layout.replace("…", str(photos)).split(), f"output={output}"]) == 0
    expected = metrics_of(trained / "evaluation")["confusion_matrix"]
    assert metrics_of(output)["confusion_matrix"] == [[0, 0, 0], *expected[1:]]
    assert metrics_of(output)["data"]["folder"] == str(photos / "val")


def test_one_class_alone_is_enough_to_evaluate_on(trained, photos, tmp_path):
    only = tmp_path / "only"
    only.mkdir()
    (photos / "test" / AWKWARD_CLASSES[1]).rename(only / AWKWARD_CLASSES[1])
    assert evaluate.run([f"run={trained}", f"data.root={only}", f"output={tmp_path / 'result'}"]) == 0
    assert metrics_of(tmp_path / "result")["count"] == 3


def test_the_same_data_at_another_place_is_found(trained, photos, tmp_path):
    # A validation split that was set aside from the training split has no folder of its own.
    shutil.rmtree(photos / "val")
    evaluate.run([f"run={trained}", f"data.root={photos}", f"output={tmp_path / 'result'}"])
    assert metrics_of(tmp_path / "result")["count"] == 6, "a fifth of 12 images of 3 classes"


def test_bad_images_are_counted_and_named_where_they_may_be_skipped(trained, photos, tmp_path):
    (photos / "val" / AWKWARD_CLASSES[1] / "2.png").write_bytes(b"")
    typed = [f"run={trained}", f"data.root={photos}", f"output={tmp_path / 'result'}"]
    with pytest.raises(InvalidDatasetError, match=r"2\.png: the file is empty"):
        evaluate.run(typed)
    with pytest.raises(
        InvalidDatasetError, match=r"data\.val: at least 1 of 21 images.*data\.max_bad_fraction = 0\.01"
    ):
        evaluate.run([*typed, "data.on_bad_image=skip", "data.max_bad_fraction=0.01"])
    assert evaluate.run([*typed, "data.on_bad_image=skip"]) == 0
    metrics, before = metrics_of(tmp_path / "result"), metrics_of(trained / "evaluation")
    assert (metrics["count"], metrics["num_skipped"]) == (20, 1)
    (skipped,) = metrics["skipped"]
    assert skipped["image"] == 9
    assert skipped["reason"].endswith("2.png: the file is empty (0 bytes)")
    assert sum(metrics["confusion_matrix"][1]) == sum(before["confusion_matrix"][1]) - 1
    assert [metrics["confusion_matrix"][row] for row in (0, 2)] == [before["confusion_matrix"][row] for row in (0, 2)]


def test_excluded_images_are_those_of_the_run_unless_a_list_is_typed(trained, photos, tmp_path):
    # A relative path of the run's list may stand for another image elsewhere.
    config = (trained / "config.yaml").read_text()
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    listed = tmp_path / "exclude.txt"
    listed.write_text(f"val/{AWKWARD_CLASSES[0]}/1.png\n")
    (run_dir / "config.yaml").write_text(config.replace("exclude: null", f"exclude: {listed}"))
    evaluate.run([f"run={run_dir}", f"output={tmp_path / 'own'}"])
    assert metrics_of(tmp_path / "own")["count"] == 20
    evaluate.run([f"run={run_dir}", f"data.root={photos}", f"output={tmp_path / 'other'}"])
    assert (metrics_of(tmp_path / "other")["count"], metrics_of(tmp_path / "other")["data"]["exclude"]) == (21, None)
    typed = [f"run={run_dir}", f"data.root={photos}", f"data.exclude={listed}", f"output={tmp_path / 'typed'}"]
    evaluate.run(typed)
    assert metrics_of(tmp_path / "typed")["count"] == 20


REFUSED = {
    "no run": (["run={tmp}"], CheckpointError, r"is no run folder: it has no run\.json"),
    "no folder": (["run={tmp}/none"], CheckpointError, "is no run folder"),
    "unknown checkpoint": (["checkpoint=7"], CheckpointError, r"has no checkpoint '7'; whole are 0001"),
    "unknown class": (
        ["data.root={tmp}/strange"],
        InvalidDatasetError,
        r"1 of 2 classes are none that the model knows",
    ),
    "empty": (["data.root={tmp}/empty"], InvalidDatasetError, "the folder is empty"),
    "unlabelled": (["data.root={tmp}/strange/wasp"], NotLabeledDatasetError, "no class folders"),
    "missing": (["data.val={tmp}/none"], InvalidDatasetError, "there is no such folder"),
    "not empty": (["output={tmp}/strange"], OutputError, "is not empty and holds no evaluation"),
    "no place": (["output=/proc/x"], OutputError, "choose another with output=FOLDER"),
    "training key": (["optimizer.lr=1", "seed=3"], ConfigError, r"2 mistakes.*belongs to the training"),
    "typo": (["data.batchsize=3"], ConfigError, r"did you mean data\.batch_size"),
    "slurm": (["dist=slurm"], ConfigError, "an evaluation is not submitted"),
    "device": (["trainer.device=mps"], DeviceError, "has no such device"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_and_leaves_nothing(trained, tmp_path, case):
    from PIL import Image

    for name in ("strange/wasp", f"strange/{AWKWARD_CLASSES[0]}", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for folder in (tmp_path / "strange").iterdir():
        Image.new("RGB", (40, 40)).save(folder / "1.png")
    typed, error, message = REFUSED[case]
    argv = [item.format(tmp=tmp_path) for item in typed]
    before = sorted(map(str, [*tmp_path.rglob("*"), *trained.rglob("*")]))
    with pytest.raises(error, match=f"(?s){message}"):
        evaluate.run(argv if argv[0].startswith("run=") else [f"run={trained}", *argv])
    assert sorted(map(str, [*tmp_path.rglob("*"), *trained.rglob("*")])) == before


def test_damaged_weights_are_refused_with_those_that_are_whole(run_dir):
    with (run_dir / "model" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is missing or damaged.*whole are 0001-\d+, 0002-\d+"
    ):
        evaluate.run([f"run={run_dir}"])
    last = run_dir / "checkpoints" / "last"
    (run_dir / "checkpoints" / last.read_text().strip() / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is damaged.*whole are 0001-\d+ \(checkpoint=NAME\)"):
        evaluate.run([f"run={run_dir}", "checkpoint=last"])


def test_a_run_that_has_not_finished_an_epoch_has_nothing_to_evaluate(run_dir):
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**record, "status": "running", "best": None}))
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(CheckpointError, match="has no checkpoint 'best': the run has not finished its first epoch"):
        evaluate.run([f"run={run_dir}"])


def test_the_weights_of_a_run_that_goes_on_are_those_of_its_best_checkpoint(run_dir):
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**record, "status": "running"}))
    shutil.rmtree(run_dir / "model")
    before = metrics_of(run_dir / "evaluation")
    evaluate.run([f"run={run_dir}"])
    assert metrics_of(run_dir / "evaluation") == before


def test_out_of_memory_says_what_to_try(trained, tmp_path, monkeypatch):
    def too_much(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("runner.evaluation.per_image.evaluate", too_much)
    with pytest.raises(DeviceError, match=r"on cpu with data\.batch_size = 6; try data\.batch_size=3: CUDA"):
        evaluate.run([f"run={trained}", f"output={tmp_path / 'result'}", "data.batch_size=6"])


def test_a_request_to_stop_ends_it_with_nothing_half_written(trained, tmp_path):
    images = tmp_path / "images" / AWKWARD_CLASSES[0]
    images.mkdir(parents=True)
    source = next(trained.parents[2].glob("photos/train/*/0.png"))
    for number in range(3000):
        (images / f"{number}.png").symlink_to(source)
    typed = [f"run={trained}", f"data.root={tmp_path / 'images'}", f"output={tmp_path / 'result'}", "data.batch_size=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "evaluate", *typed],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "device" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "StoppedOnRequest: stopped on SIGTERM while evaluating on the val split" in err
    assert [path.name for path in (tmp_path / "result").iterdir()] == ["logs"]
