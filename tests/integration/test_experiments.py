"""Each experiment that ships trains three steps at its own image sizes, in small batches."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

import runner
from runner.config import group_options

# They would be downloaded.
CHANGED = {"transfer": ("model.weights=null",), "finetune_timm": ("model.weights=null",)}
# Their rate is for steps of 4,096 images; by steps of 2 it diverges.
CHANGED |= dict.fromkeys(("imagenet_resnet50_16ep", "imagenet_resnet50_50ep", "imagenet_slurm"), ("optimizer.lr=0.01",))
OF_DIGITS = ("digits", "sweep_digits", "distill")
OF_CIFAR = ("cifar10_resnet18", "cifar10_fast")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 1)):
        for name in ("ants", "bees"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (180, 240, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 with 10 images in each of its files."""
    root = tmp_path_factory.mktemp("cifar")
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = generator.integers(0, 256, (10, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": list(range(10))}))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return root


def settings_of(name: str, photos: Path, cifar: Path) -> list[str]:
    """Where an experiment finds its data, and what is changed in it here."""
    root = [] if name in OF_DIGITS else [f"data.root={cifar if name in OF_CIFAR else photos}"]
    return [*root, *CHANGED.get(name, ())]


@pytest.mark.long
@pytest.mark.any_loss
@pytest.mark.parametrize("name", group_options("experiment"))
def test_it_trains_three_steps(
    name: str, photos: Path, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    small = ("data.workers=0", "data.last_batch=keep", "trainer.max_steps=3")
    machine = (
        "trainer.precision=fp32",
        "trainer.device=cpu",
        "dist.nodes=1",
        "dist.procs_per_node=1",
        f"output_dir={tmp_path}",
    )
    # ShuffleNet's last maps have one pixel, so that BatchNorm needs more images.
    size = "data.batch_size=16" if name == "distill" else "data.batch_size=2"
    more = settings_of(name, photos, cifar)
    if name == "distill":
        teacher = runner.fit(runner.load_config(["experiment=digits", size, *small, *machine, "trainer.max_steps=1"]))
        more.append(f"distill.run={teacher.run_dir}")
    config = runner.load_config([f"experiment={name}", size, *small, *machine, *more])
    result = runner.fit(config)
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == 3
    shown = json.loads((result.run_dir / "model" / "model.json").read_text())["preprocessing"]["image_size"]
    assert shown == config.data.eval_image_size
