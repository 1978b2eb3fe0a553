"""What inputs are made from: a small data set, a run that was trained on it, a sweep, archives and lists."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from tests.conftest import SMALL_NET

CLASSES = ("ant", "bee", "cat")
_NUM_IMAGES = {"train": 3, "val": 2}


def make_templates(folder: Path) -> None:
    """Make `photos`, `run` and `sweep`; takes some seconds, most of them for the training."""
    _photos(folder / "photos")
    _run(folder)
    _sweep(folder / "sweep", folder / "run")


def _photos(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for split, count in _NUM_IMAGES.items():
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 200, (24, 20, 3), dtype=np.uint8)
                pixels[..., label] += 55
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


def tiny(photos: Path | str) -> list[str]:
    """Overrides of a training on these photos that takes a moment."""
    return [
        *SMALL_NET,
        *("data=folder", f"data.root={photos}", "data.image_size=32", "data.batch_size=4", "data.workers=0"),
        *("data.index_cache=none", "trainer.epochs=1", "trainer.precision=fp32", "trainer.device=cpu"),
        *("dist.procs_per_node=1", "optimizer.lr=0.001"),
    ]


def _run(folder: Path) -> None:
    import runner

    with contextlib.chdir(folder):
        made = runner.fit(runner.load_config(tiny(folder / "photos"))).run_dir
    # What a commit leaves out, if this one left anything out.
    (made / "source.patch").write_text("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n")
    made.rename(folder / "run")
    shutil.rmtree(folder / "outputs")


def _sweep(folder: Path, run: Path) -> None:
    """As a grid over one key leaves it, with one trial."""
    import yaml

    from runner.tools.sweep.sweep_folder import SweepFolder, Trial

    folder.mkdir()
    sweep = SweepFolder(folder)
    argv = ["-m", *tiny(run.parent / "photos"), "sweep.dry_run=false", "optimizer.lr=0.001,0.002"]
    facts = {"start": "2026-11-20T10:00:00+00:00", "argv": argv, "cwd": str(folder.parent)}
    sweep.begin({**facts, "metrics": ["val_loss"], "directions": ["minimize"]})
    config = yaml.safe_load((run / "config.yaml").read_text())
    values = {"optimizer.lr": "0.001"}
    sweep.save(Trial(number=0, identity="0" * 16, values=values, overrides=["optimizer.lr=0.001"], config=config))
    shutil.copytree(run, folder / "0")
    (folder / "multirun.yaml").write_text("{}\n")
    (folder / "leaderboard.json").write_text(json.dumps({}))
