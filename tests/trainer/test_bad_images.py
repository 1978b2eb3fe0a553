"""Images that can't be read, in real trainings: each is named once, and nothing else changes by its absence."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

import runner
from runner.base.errors import InvalidDatasetError
from runner.data.loader.batch import BadImage, Batch
from runner.data.loader.order import epoch_order
from runner.dist.device import Precision
from runner.trainer.bad_images import BadImages, padded_batch
from tests.conftest import SMALL_NET

NUM_IMAGES = 8
NOTHING = torch.empty(0, dtype=torch.int64)
EMPTY = Batch(
    images=torch.empty((0, 3, 0, 0), dtype=torch.uint8),
    labels=NOTHING,
    ids=NOTHING,
    asked=torch.tensor([1]),
    bad=(BadImage(1, "empty"),),
)
# One step whose result shows the gradient of the head, which sees each image by itself. The features of an untrained
# ResNet-18 are large enough for that.
ONE_STEP = (
    "data=folder",
    "data.image_size=32",
    "data.train_transforms=[{name:center_crop,size:32}]",
    "data.eval_transforms=[{name:center_crop,size:32}]",
    "data.on_bad_image=skip",
    "data.max_bad_fraction=0.9",
    "schedule=constant",
    "optimizer.lr=0.1",
    "optimizer.lr_scaling=none",
    "optimizer.momentum=0",
    "optimizer.nesterov=false",
    "optimizer.weight_decay=0",
    "trainer.max_steps=1",
    "trainer.freeze_backbone_epochs=1",
)


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """A function (name, bad images of training, removed ones) → folder of 2 × 4 training and 4 validation images."""

    def make(name: str, bad: tuple[int, ...] = (), removed: tuple[int, ...] = (), num_images: int = NUM_IMAGES) -> Path:
        generator = np.random.default_rng(7)
        for split, count in (("train", num_images), ("val", 4)):
            for number in range(count):
                # In the order of the index: first all of the first class.
                file = tmp_path / name / split / ("ant" if number < count // 2 else "bee") / f"{number:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file)
                if split == "train" and number in bad:
                    file.write_bytes(b"")
                if split == "train" and number in removed:
                    file.unlink()
        return tmp_path / name

    return make


@pytest.fixture
def options(tiny) -> Callable[..., list[str]]:
    def make(root: Path, *more: str) -> list[str]:
        keys = {"data.num_classes", "data.num_train", "data.num_val", "data"}
        net = () if any(item.startswith("model") for item in more) else ("model=resnet18",)
        common = [item for item in tiny(*ONE_STEP, *net, *more) if item.partition("=")[0] not in keys]
        return ["data=folder", *common, f"data.root={root}"]

    return make


@pytest.fixture
def train(options) -> Callable[..., Path]:
    return lambda root, *more: runner.fit(runner.load_config(options(root, *more))).run_dir


def head_of(run_dir: Path) -> torch.Tensor:
    return safetensors.torch.load_file(run_dir / "model" / "model.safetensors")["fc.weight"]


def row_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])


def test_the_gradient_is_the_mean_over_the_images_that_were_used(photos, train):
    whole = train(photos("whole"), "data.batch_size=8")
    skipped = train(photos("bad", bad=(1, 6)), "data.batch_size=8")
    removed = train(photos("removed", removed=(1, 6)), "data.batch_size=6")
    torch.testing.assert_close(head_of(skipped), head_of(removed), rtol=1e-4, atol=1e-6)
    assert (head_of(skipped) - head_of(whole)).abs().max() > 1e-3
    assert row_of(skipped)["train_loss"] == pytest.approx(row_of(removed)["train_loss"], rel=1e-5)
    assert (row_of(skipped)["train_images"], row_of(skipped)["train_images_skipped"]) == (6, 2)
    assert row_of(skipped)["train_images_digest"] == row_of(whole)["train_images_digest"]


def test_accumulated_batches_too_even_where_one_has_no_good_image(photos, train):
    order = epoch_order(NUM_IMAGES, 1, 0).tolist()
    bad = (*order[:2], order[4])
    skipped = train(photos("bad", bad=bad), "data.batch_size=2", "trainer.accumulate_steps=4")
    removed = train(photos("removed", removed=bad), "data.batch_size=5")
    torch.testing.assert_close(head_of(skipped), head_of(removed), rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_process_without_a_good_image_joins_with_weight_zero(photos, options, run_cli, train, tmp_path):
    # Of two processes the first has no image left.
    bad = tuple(epoch_order(NUM_IMAGES, 1, 0).tolist()[:4])
    root = photos("bad", bad=bad)
    done = run_cli(*options(root, "dist.procs_per_node=2", "data.batch_size=4", "data.balance=loss_weights"))
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    skipped = record.parent
    assert row_of(skipped)["train_images"] == NUM_IMAGES - len(bad)
    warnings = json.loads(record.read_text())["warnings"]
    assert warnings[0].startswith(f"data.train: {len(bad)} of 8 images were skipped: ")
    logs = {rank: (skipped / "logs" / f"rank_{rank}.log").read_text() for rank in (0, 1)}
    assert logs[0].count("skipped a bad image") == len(bad)
    assert "skipped a bad image" not in logs[1]
    alone = train(root, "data.batch_size=8", "data.balance=loss_weights")
    torch.testing.assert_close(head_of(skipped), head_of(alone), rtol=1e-4, atol=1e-6)
    assert row_of(skipped)["train_loss"] == pytest.approx(row_of(alone)["train_loss"], rel=1e-5)


def test_loss_weights_are_those_of_torch(photos, train):
    # Three of one class, four of the other.
    root = photos("uneven", removed=(0,))
    weighted = train(root, "data.batch_size=7", "data.balance=loss_weights")
    plain = train(root, "data.batch_size=7")
    record = json.loads((weighted / "run.json").read_text())
    assert record["class_weights"] == {"ant": pytest.approx(7 / 6), "bee": pytest.approx(7 / 8)}
    assert json.loads((plain / "run.json").read_text())["class_weights"] is None
    assert "balance     loss_weights: ant 1.17, bee 0.875" in (weighted / "logs/rank_0.log").read_text()
    # torch's own weighted mean of the same head on the same features.
    config = runner.load_config(["data=folder", f"data.root={root}", "model=resnet18"])
    from runner.base.keyed_random import key
    from runner.model import build_architecture

    torch.manual_seed(key(1, "model"))
    module = build_architecture(config.model, 2).eval()
    files = sorted(root.glob("train/*/*.png"))
    loaded = runner.load_model(weighted)
    pixels = torch.stack([loaded.transform(Image.open(file)) for file in files])
    labels = torch.tensor([file.parent.name == "bee" for file in files], dtype=torch.int64)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([7 / 6, 7 / 8]))(module(pixels), labels)
    loss.backward()
    expected = module.fc.weight.detach() - 0.1 * module.fc.weight.grad
    torch.testing.assert_close(head_of(weighted), expected, rtol=1e-3, atol=1e-5)


def test_everything_else_goes_on(photos, train, caplog):
    root = photos("some", bad=(3, 9, 13), num_images=24)
    (root / "val/bee/03.png").write_bytes(b"no image")
    common = ("data.batch_size=8", "trainer.max_steps=null", "trainer.epochs=3", "trainer.freeze_backbone_epochs=0")
    with caplog.at_level(logging.WARNING, logger="runner"):
        run_dir = train(root, *common, *SMALL_NET)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(row["train_images"], row["train_images_skipped"], row["val_images_skipped"]) for row in rows] == [
        (21, 3, 1)
    ] * 3
    assert all(row["val_top1"] in {0, 1 / 3, 2 / 3, 1} for row in rows), "of three images"
    text = (run_dir / "logs/rank_0.log").read_text()
    for name in ("03.png", "09.png", "13.png"):
        assert text.count(f"train/{'ant' if name < '12' else 'bee'}/{name}: the file is empty (0 bytes)") == 1
    assert text.count("data.val: skipped a bad image: ") == 1
    assert sum("skipped a bad image" in message for message in caplog.messages) == 4
    train_warning, val_warning = json.loads((run_dir / "run.json").read_text())["warnings"]
    assert train_warning.startswith("data.train: 3 of 24 images were skipped: ")
    assert val_warning.startswith("data.val: 1 of 4 images were skipped: ")


def test_by_default_the_first_one_ends_the_run(photos, train):
    with pytest.raises(InvalidDatasetError, match=r"train/ant/01\.png: the file is empty"):
        train(photos("bad", bad=(1,)), *SMALL_NET, "data.batch_size=8", "data.on_bad_image=error")


@pytest.mark.parametrize("split", ["train", "val"])
def test_too_many_end_the_run(photos, train, split):
    root = photos("bad", bad=(1, 2, 5) if split == "train" else ())
    if split == "val":
        (root / "val/ant/00.png").write_bytes(b"")
    with pytest.raises(InvalidDatasetError) as caught:
        train(root, *SMALL_NET, "data.batch_size=8", "data.max_bad_fraction=0.2")
    found, total = (3, 8) if split == "train" else (1, 4)
    assert (
        f"data.{split}: at least {found} of {total} images can't be read, more than data.max_bad_fraction = 0.2"
        in str(caught.value)
    )
    assert ".png: the file is empty (0 bytes)" in str(caught.value)


def test_a_killed_run_skips_the_same_images_when_it_goes_on(photos, options, tmp_path, monkeypatch):
    from tests.training.test_resume import begin, outcome, resume

    root = photos("some", bad=(3, 9, 13), num_images=24)
    typed = ("data.batch_size=8", "trainer.max_steps=null", "trainer.epochs=2", "trainer.freeze_backbone_epochs=0")
    typed += (*SMALL_NET, "trainer.checkpoint_every=1", "data.balance=sampler")
    whole = runner.fit(runner.load_config([*options(root, *typed), f"output_dir={tmp_path}/whole"])).run_dir
    run_dir = begin(options(root, *typed), tmp_path, monkeypatch, at_step=4)
    assert outcome(resume(run_dir)) == outcome(whole)
    assert outcome(whole)["rows"][0]["train_images_skipped"] > 0


def test_the_number_so_far_is_known_after_a_resume():
    ledger = BadImages("data.train", num_images=10, max_fraction=0.3, is_logged=False)
    ledger.reset(2)
    ledger.add([BadImage(4, "four")])
    with pytest.raises(InvalidDatasetError, match=r"at least 4 of 10.*: four; seven"):
        ledger.add([BadImage(7, "seven")])


def test_the_terminal_is_not_flooded(caplog):
    ledger = BadImages("data.train", num_images=100, max_fraction=0.9, is_logged=True)
    with caplog.at_level(logging.WARNING, logger="runner"):
        for _ in range(2):
            ledger.reset()
            ledger.add([BadImage(number, f"image {number}") for number in range(25)])
    named = [record for record in caplog.records if "skipped a bad image" in record.message]
    assert len(named) == 25
    assert sum(not getattr(record, "is_file_only", False) for record in named) == 10
    assert sum("named in the log file only" in record.message for record in caplog.records) == 1
    assert ledger.num_in_epoch == 25


class Viewing(nn.Module):
    """A user's model that takes no empty batch, and learns in its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.frozen = nn.BatchNorm2d(4).eval()
        self.head = nn.Linear(4 * 30 * 30, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.frozen(self.features(images))
        return self.head(features.view(features.shape[0], -1))


def model_of(name: str) -> nn.Module:
    import torchvision

    match name:
        case "viewing":
            return Viewing()
        case "recomputing":
            return torchvision.models.densenet121(num_classes=3, memory_efficient=True).train()
        case _:
            return getattr(torchvision.models, name)(num_classes=3).train()


@pytest.mark.parametrize("name", ["resnet18", "recomputing", "viewing"])
def test_an_empty_batch_teaches_nothing(name):
    module = model_of(name)
    before = {key: value.clone() for key, value in module.named_buffers()}
    modes = {key: layer.training for key, layer in module.named_modules()}
    with padded_batch(torch.empty((0, 3, 0, 0), dtype=torch.uint8), (3, 32, 32), module) as images:
        logits = module(images.float())[:0]
        loss = nn.functional.cross_entropy(logits, torch.empty(0, dtype=torch.int64), reduction="sum")
        loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters())
    assert all(torch.equal(dict(module.named_buffers())[key], value) for key, value in before.items())
    assert {key: layer.training for key, layer in module.named_modules()} == modes


def test_synchronised_batchnorm_is_told_that_there_is_no_image():
    module = nn.SyncBatchNorm.convert_sync_batchnorm(Viewing())
    with padded_batch(torch.empty((0, 3, 0, 0), dtype=torch.uint8), (3, 32, 32), module) as images:
        assert images.shape == (0, 3, 32, 32)
        assert module.training


@pytest.mark.parametrize("num_images", [0, 2])
def test_no_images_are_computed_in_the_format_of_synchronised_statistics(tiny, tmp_path, num_images):
    from tests.trainer.test_waits import trainer_on

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.SyncBatchNorm(3)
            self.head = nn.Linear(3, 4)
            self.seen: list[bool] = []

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.seen.append(torch.is_autocast_enabled("cpu"))
            return self.head(images.mean((2, 3)))

    trainer = trainer_on(torch.device("cpu"), Precision(name="bf16", reason="asked for"), tiny(), tmp_path)
    trainer.state.model = trainer.stepper.replica = spy = Spy()
    batch = trainer.images.train_batches.preview(num_images) if num_images else EMPTY
    trainer.stepper._backward(batch, 0, 1.0)
    assert spy.seen == [num_images > 0]


def test_a_single_image_gets_a_twin():
    image = torch.randint(0, 256, (1, 3, 4, 4), dtype=torch.uint8)
    pair = torch.cat([image, image])
    with padded_batch(image, (3, 4, 4), nn.Identity()) as left:
        assert torch.equal(left, pair)
    with padded_batch(pair, (3, 4, 4), nn.Identity()) as left:
        assert left is pair
