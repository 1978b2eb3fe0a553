"""A whole training, in this process, on data made in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

import runner
from runner.base.errors import CheckpointError, DeviceError, NonFiniteLossError
from runner.base.files import sha256_of
from runner.base.keyed_random import key
from runner.data.loader import loader
from runner.model import build_architecture
from runner.run.checkpoint import CheckpointStore
from tests.conftest import ROOT


def rows_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def record_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "run.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("run")
    overrides = [*TINY, f"output_dir={folder}/outputs", "trainer.ema_decay=0.5"]
    return runner.fit(runner.load_config(overrides))


def test_the_run_folder_is_as_the_contract_says(finished):
    names = {path.name for path in finished.run_dir.iterdir()}
    assert names - {"source.patch"} == {
        "config.yaml",
        "run.json",
        "environment.txt",
        "classes.json",
        "metrics.jsonl",
        "tensorboard",
        "logs",
        "checkpoints",
        "evaluation",
        "model",
        "report.html",
    }
    assert finished.run_dir.parent.parent.name == "outputs"
    assert {path.name for path in (finished.run_dir / "logs").iterdir()} == {"rank_0.log", "run.json.lock"}


def test_the_record_explains_the_run(finished):
    record = record_of(finished.run_dir)
    assert record["status"] == "completed"
    assert record["attempts"] == 1
    assert record["error"] is None
    assert record["world_size"] == 1
    assert record["best"]["metric"] == "val_top1"
    assert record["versions"]["torch"] == torch.__version__
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    of_new_files = {"num_untracked"} if listed.stdout else set()
    assert set(record["git"]) == {"commit", "dirty"} | of_new_files
    assert record["end"] >= record["start"]


def test_the_saved_config_is_complete_and_composes_to_itself(finished):
    saved = yaml.safe_load((finished.run_dir / "config.yaml").read_text())
    from runner.config.schema.checks.validation import validate_config

    assert validate_config(saved).model_dump(mode="json") == saved


def test_metrics_have_one_row_per_epoch(finished):
    rows = rows_of(finished.run_dir)
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 5), (2, 10)]
    needed = {"lr", "train_loss", "train_top1", "train_images_per_second", "val_loss", "val_top1", "val_top5"}
    assert needed | {"val_ema_loss", "val_ema_top1"} <= set(rows[0])
    for row in rows:
        parts = sum(row[f"{part}_seconds"] for part in ("train", "evaluation", "checkpoint"))
        assert 0 <= row["data_wait_seconds"] <= row["train_seconds"] <= parts <= row["epoch_seconds"]
    assert all(0 <= row[key] <= 1 for row in rows for key in ("train_top1", "val_top1", "val_top5"))
    assert all(row["val_top5"] == 1 for row in rows), "top-5 of four classes is everything"


def test_tensorboard_has_the_promised_curves(finished):
    events = EventAccumulator(str(finished.run_dir / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    curves = {
        "learning_rate",
        "train/loss",
        "train/top1",
        "train/images_per_second",
        "val/loss",
        "val/top1",
    }
    assert curves | {"time/data_wait_fraction", "best/val_top1"} <= set(tags["scalars"])
    assert "val/top5" not in tags["scalars"], "of four classes it is 1 by definition"
    assert tags["images"] == ["train/augmented"]
    assert [event.step for event in events.Scalars("val/top1")] == [5, 10]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_checkpoints_name_last_and_best(finished):
    store = CheckpointStore(finished.run_dir / "checkpoints", keep=2)
    assert store.pointed("last") == "0002-00000010"
    assert store.pointed("best") == finished.best.checkpoint
    checkpoint = store.load("0002-00000010")
    assert set(checkpoint.tensors) == {"model", "optimizer", "ema"}
    assert checkpoint.state["progress"]["epoch"] == 2
    assert checkpoint.state["classes"] == list(json.loads((finished.run_dir / "classes.json").read_text()))


def test_the_package_holds_the_best_weights_not_the_last(tmp_path, tiny):
    # A rate that is too high from the second epoch on: the first epoch is the best. Clipped, the loss stays small.
    result = runner.fit(
        runner.load_config(
            tiny(
                "schedule=constant",
                "schedule.warmup_epochs=1",
                "schedule.start_lr=0.003",
                "schedule.interval=epoch",
                "optimizer.lr=0.3",
                "trainer.clip_norm=1",
                "trainer.monitor=val_loss",
                "trainer.epochs=3",
                "model=resnet18",
            )
        )
    )
    rows = rows_of(result.run_dir)
    assert result.best.epoch == 1
    assert rows[0]["val_loss"] < rows[-1]["val_loss"]
    store = CheckpointStore(result.run_dir / "checkpoints", keep=2)
    packaged = safetensors.torch.load_file(result.run_dir / "model" / "model.safetensors")
    best, last = (store.load(store.pointed(pointer)).tensors["model"] for pointer in ("best", "last"))
    assert all(torch.equal(packaged[name], value) for name, value in best.items())
    assert not torch.equal(packaged["fc.weight"], last["fc.weight"])
    first, second = store.folder / store.pointed("best"), result.run_dir / "model"
    assert sha256_of(first / "model.safetensors") == sha256_of(second / "model.safetensors")


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_the_package_opens_with_plain_torchvision_in_three_lines(tiny, name):
    result = runner.fit(runner.load_config(tiny(f"model={name}", "trainer.max_steps=2")))
    file = result.run_dir / "model" / "model.safetensors"

    model = getattr(torchvision.models, name)(num_classes=4)
    model.load_state_dict(safetensors.torch.load_file(file))
    model.eval()

    loaded = runner.load_model(result.run_dir)
    assert loaded.classes == tuple(json.loads((result.run_dir / "classes.json").read_text()))
    pixels = torch.randint(0, 256, (3, 48, 40), dtype=torch.uint8)
    images = loaded.transform(pixels)[None]
    with torch.inference_mode():
        assert torch.equal(model(images), loaded.module(images))


def test_a_damaged_package_is_refused(tiny):
    result = runner.fit(runner.load_config(tiny("trainer.max_steps=1")))
    file = result.run_dir / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        runner.load_model(result.run_dir)
    (result.run_dir / "model" / "model.json").unlink()
    with pytest.raises(CheckpointError, match="no packaged model"):
        runner.load_model(result.run_dir)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny):
    digests = []
    for seed in (1, 1, 2):
        result = runner.fit(runner.load_config(tiny(f"seed={seed}", "trainer.epochs=1")))
        digests.append(sha256_of(result.run_dir / "model" / "model.safetensors"))
    assert digests[0] == digests[1] != digests[2]


def test_max_steps_ends_in_mid_epoch_and_everything_follows(tiny):
    result = runner.fit(runner.load_config(tiny("trainer.epochs=3", "trainer.max_steps=7")))
    assert [(row["epoch"], row["step"]) for row in rows_of(result.run_dir)] == [(1, 5), (2, 7)]
    assert record_of(result.run_dir)["status"] == "completed"
    full = runner.fit(runner.load_config(tiny("trainer.epochs=3")))
    assert rows_of(full.run_dir)[0]["lr"] == rows_of(result.run_dir)[0]["lr"], "the schedule keeps its length"


def test_patience_ends_a_training_that_gets_no_better(tiny):
    # Without learning nothing improves after the first epoch.
    result = runner.fit(
        runner.load_config(
            tiny(
                "schedule=constant",
                "optimizer.lr=1e-12",
                "trainer.epochs=9",
                "trainer.patience=2",
                "model.name=resnet18",
                "optimizer.weight_decay=0",
                "trainer.freeze_backbone_epochs=8",
            )
        )
    )
    rows = rows_of(result.run_dir)
    lowest = min(range(len(rows)), key=lambda index: rows[index]["val_loss"])
    assert len(rows) - 1 - lowest == 2
    assert len(rows) < 9


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(tiny, tmp_path):
    with pytest.raises(NonFiniteLossError, match=r"epoch 2, step \d+, learning rate 1e\+20.*try"):
        runner.fit(
            runner.load_config(
                tiny(
                    "schedule=step",
                    "schedule.step_epochs=1",
                    "schedule.gamma=1",
                    "optimizer.lr=1e20",
                    "schedule.warmup_epochs=1",
                    "schedule.start_lr=1e-3",
                    "schedule.interval=epoch",
                    "trainer.epochs=3",
                )
            )
        )
    (run_file,) = tmp_path.glob("outputs/*/*/run.json")
    record = json.loads(run_file.read_text())
    assert record["status"] == "failed"
    assert record["error"]["name"] == "NonFiniteLossError"
    assert record["error"]["rank"] == 0
    store = CheckpointStore(run_file.parent / "checkpoints", keep=2)
    assert store.names() == ["0001-00000005"]
    assert all(value.isfinite().all() for value in store.load("0001-00000005").tensors["model"].values())
    assert "NonFiniteLossError" in (run_file.parent / "logs" / "rank_0.log").read_text()


@pytest.mark.parametrize(("batch_size", "accumulate"), [(4, 2), (2, 4)])
def test_accumulated_batches_take_the_same_steps_as_large_ones(tiny, batch_size, accumulate):
    # DenseNets and ResNets have BatchNorm, which sees the batches; a frozen backbone leaves it out of the game.
    # A ResNet-18 hands its head features that make a difference even untrained.
    frozen = ("trainer.freeze_backbone_epochs=1", "trainer.epochs=2", "trainer.max_steps=5")
    common = ("model=resnet18", *frozen, "data.num_train=36")
    large = runner.fit(runner.load_config(tiny(*common)))
    small = runner.fit(
        runner.load_config(tiny(*common, f"data.batch_size={batch_size}", f"trainer.accumulate_steps={accumulate}"))
    )
    assert [row["step"] for row in rows_of(small.run_dir)] == [row["step"] for row in rows_of(large.run_dir)]
    weights = [safetensors.torch.load_file(result.run_dir / "model" / "model.safetensors") for result in (large, small)]
    torch.testing.assert_close(weights[0]["fc.weight"], weights[1]["fc.weight"], rtol=1e-4, atol=1e-6)


def test_a_frozen_backbone_stays_as_it_was_and_then_learns(tiny):
    result = runner.fit(
        runner.load_config(tiny("trainer.freeze_backbone_epochs=1", "trainer.epochs=2", "trainer.keep=5"))
    )
    store = CheckpointStore(result.run_dir / "checkpoints", keep=5)
    first, second = (store.load(name).tensors["model"] for name in store.names())
    torch.manual_seed(key(1, "model"))
    start = build_architecture(runner.load_config(tiny()).model, 4).state_dict()
    learnt = {name for name, value in first.items() if not torch.equal(value, start[name])}
    assert learnt == {"fc.weight", "fc.bias"}, "not even statistics of the backbone's BatchNorm change"
    assert not torch.equal(first["conv1.0.weight"], second["conv1.0.weight"])


@pytest.mark.parametrize("norm", [1e-3, 2e-3])
def test_clipping_bounds_the_first_step(tiny, norm):
    plain = ("schedule=constant", "optimizer.lr=1", "optimizer.weight_decay=0", "optimizer.momentum=0")
    step = ("model=resnet18", "trainer.max_steps=1", f"trainer.clip_norm={norm}")
    overrides = tiny(*plain, "optimizer.nesterov=false", *step)
    config = runner.load_config(overrides)
    after = runner.load_model(runner.fit(config).run_dir).module
    torch.manual_seed(key(config.seed, "model"))
    before = build_architecture(config.model, 4)
    pairs = zip(after.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(new - old).flatten() for new, old in pairs]).double().norm().item()
    assert moved == pytest.approx(norm, rel=1e-2), "a step at rate 1 is as long as the clipped gradient"


OPTIONS = (
    "trainer.precision=bf16",
    "trainer.deterministic=true",
    "trainer.label_smoothing=0.1",
    "trainer.mixup_alpha=0.2",
    "trainer.cutmix_alpha=1",
    "optimizer=adamw",
    "model.stem=small",
)


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_trains(tiny, option):
    overrides = [item for item in tiny("model=resnet18") if item.partition("=")[0] != option.partition("=")[0]]
    result = runner.fit(runner.load_config([*overrides, option, "trainer.max_steps=2"]))
    assert record_of(result.run_dir)["status"] == "completed"


def test_images_are_mixed_with_class_weights_and_over_several_batches_too(tiny):
    mixed = (
        "trainer.mixup_alpha=0.2",
        "trainer.cutmix_alpha=1",
        "data.balance=loss_weights",
        "trainer.accumulate_steps=2",
    )
    result = runner.fit(runner.load_config(tiny(*mixed, "trainer.max_steps=2")))
    assert record_of(result.run_dir)["status"] == "completed"


def test_checkpoints_within_an_epoch(tiny):
    result = runner.fit(runner.load_config(tiny("trainer.checkpoint_every=2", "trainer.keep=9", "trainer.epochs=1")))
    store = CheckpointStore(result.run_dir / "checkpoints", keep=9)
    assert store.names() == ["0000-00000002", "0000-00000004", "0001-00000005"]
    state = store.load("0000-00000002").state
    assert (state["progress"]["epoch"], state["progress"]["position"], state["meter"]["count"]) == (0, 16, 16)


def test_checkpoints_by_the_clock(tiny):
    result = runner.fit(
        runner.load_config(tiny("trainer.checkpoint_minutes=1e-9", "trainer.keep=9", "trainer.epochs=1"))
    )
    store = CheckpointStore(result.run_dir / "checkpoints", keep=9)
    assert store.names() == [f"0000-{step:08d}" for step in range(5)] + ["0001-00000005"]


@pytest.mark.parametrize("place", ["runner.trainer.step.Stepper._backward", "runner.training.final.evaluate_split"])
def test_out_of_memory_says_what_to_try(tiny, monkeypatch, place):
    def too_much(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(place, too_much)
    with pytest.raises(DeviceError, match=r"data\.batch_size=4 with trainer\.accumulate_steps=2"):
        runner.fit(runner.load_config(tiny()))


def test_a_finished_training_is_packaged_even_if_it_can_not_be_evaluated(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "runner.evaluation.drawing", None)
    with pytest.raises(ImportError, match="drawing"):
        runner.fit(runner.load_config(tiny()))
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    assert (record.parent / "model" / "model.safetensors").is_file()


def test_images_of_evaluation_that_do_not_fit_are_refused_before_the_training(tiny, monkeypatch):
    free = iter([10**9, 1000])
    monkeypatch.setattr("runner.data.cache.on_device.available_memory", lambda: next(free))
    fixed = "data.train_transforms=[{name: center_crop, size: ${data.image_size}}]"
    with pytest.raises(DeviceError, match=r"data\.cache=device: the \d+ images of evaluation of each process take"):
        runner.fit(runner.load_config(tiny("data.cache=device", fixed)))


def test_no_loader_process_of_evaluation_inherits_a_checkpoint_that_is_being_written(tiny, monkeypatch):
    being_written = []
    save, start = CheckpointStore.save, loader._started

    def slow_save(*given: object) -> None:
        threading.Event().wait(0.5)
        save(*given)

    def started(made: DataLoader) -> object:
        being_written.append(any(thread.name == "checkpoint" for thread in threading.enumerate()))
        return start(made)

    monkeypatch.setattr(CheckpointStore, "save", slow_save)
    monkeypatch.setattr(loader, "_started", started)
    workers = ("data.workers=1", "data.cache=none", "trainer.checkpoint_every=5", "trainer.epochs=1")
    runner.fit(runner.load_config(tiny(*workers)))
    assert len(being_written) >= 2, "for training and for evaluation"
    assert not any(being_written)
