"""Each experiment that ships trains three steps at its own image sizes, in small batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import runner
from runner.config import group_options

CHANGED = {
    "transfer": ("model.weights=null",),  # They would be downloaded.
}
OF_DIGITS = ("digits", "distill")


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


@pytest.mark.any_loss
@pytest.mark.parametrize("name", group_options("experiment"))
def test_it_trains_three_steps(name: str, photos: Path, tmp_path: Path) -> None:
    small = ("data.workers=0", "data.last_batch=keep", "trainer.max_steps=3")
    machine = ("trainer.precision=fp32", "trainer.device=cpu", f"output_dir={tmp_path}")
    # ShuffleNet's last maps have one pixel, so that BatchNorm needs more images.
    size = "data.batch_size=16" if name == "distill" else "data.batch_size=2"
    more = [*CHANGED.get(name, ())] if name in OF_DIGITS else [f"data.root={photos}", *CHANGED.get(name, ())]
    if name == "distill":
        teacher = runner.fit(runner.load_config(["experiment=digits", size, *small, *machine, "trainer.max_steps=1"]))
        more.append(f"distill.run={teacher.run_dir}")
    config = runner.load_config([f"experiment={name}", size, *small, *machine, *more])
    result = runner.fit(config)
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == 3
    shown = json.loads((result.run_dir / "model" / "model.json").read_text())["preprocessing"]["image_size"]
    assert shown == config.data.eval_image_size
