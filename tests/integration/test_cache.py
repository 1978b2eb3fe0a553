"""Whole trainings with each data.cache."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import runner
from runner.data.images.transforms import ReducingCrop

OF_FILES = ("data=folder", "trainer.epochs=3")
CROPS = "data.train_transforms=[{name: resize, size: 32}, {name: center_crop, size: 32}, {name: random_crop, size: 32, padding: 4}, {name: random_horizontal_flip}]"  # noqa: E501 - an override


@pytest.fixture
def photos(tmp_path: Path, write_image: Callable[..., Path]) -> Path:
    for split, count in (("train", 10), ("val", 7)):
        for label, name in enumerate(("ant", "bee")):
            for number in range(count):
                write_image(tmp_path / "photos" / split / name / f"{number}.png", seed=100 * label + number)
    return tmp_path / "photos"


def outcome(run_dir: Path) -> tuple[list[dict], dict[str, torch.Tensor]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    told = [{name: row[name] for name in ("train_loss", "val_loss", "val_top1", "train_images_digest")} for row in rows]
    return told, safetensors.torch.load_file(run_dir / "model" / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    (rows, weights), (other_rows, other_weights) = outcome(one), outcome(other)
    assert rows == other_rows
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.fixture
def train(tiny: Callable[..., list[str]], photos: Path, tmp_path: Path) -> Callable[..., Path]:
    def fit(*more: str) -> Path:
        typed = [item for item in tiny() if "num_" not in item and not item.startswith(("data=", "trainer.epochs="))]
        return runner.fit(runner.load_config([*typed, *OF_FILES, f"data.root={photos}", *more])).run_dir

    return fit


def kept_files() -> list[Path]:
    return [file for folder in ("/dev/shm", tempfile.gettempdir()) for file in Path(folder).glob("runner-*.pixels")]


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_changes_no_bit_and_leaves_nothing_behind(train: Callable[..., Path], workers: int) -> None:
    before = kept_files()
    assert_same(train("data.cache=none"), train("data.cache=memory", f"data.workers={workers}"))
    assert kept_files() == before


@pytest.mark.parametrize("cache", ["auto", "memory"])
def test_no_image_is_decoded_twice(
    train: Callable[..., Path], photos: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    from runner.data import source

    opened: list[str] = []
    monkeypatch.setattr(source, "open_image", lambda path, *how: opened.append(path) or open_image(path, *how))
    open_image = runner.data.images.decode.open_image
    train(f"data.cache={cache}")
    for split, count in (("train", 20), ("val", 14)):
        paths = [path for path in opened if f"/{split}/" in path]
        assert len(set(paths)) == count
        assert len(paths) <= count + 1, "beforehand one is looked at: whether it can be read at all"


def test_by_default_the_images_of_evaluation_are_decoded_once(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.data import source

    opened: list[str] = []
    monkeypatch.setattr(source, "open_image", lambda path, *how: opened.append(path) or open_image(path, *how))
    open_image = runner.data.images.decode.open_image
    kept = train()
    assert len([path for path in opened if "/val/" in path]) <= 14 + 1
    opened.clear()
    anew = train("data.cache=none")
    assert len([path for path in opened if "/val/" in path]) >= 2 * 14
    assert_same(kept, anew)


@pytest.mark.long
def test_memory_is_shared_by_two_processes(
    run_cli: Callable[..., object], photos: Path, tmp_path: Path, tiny: Callable[..., list[str]]
) -> None:
    before = kept_files()
    typed = [
        item for item in tiny() if "num_" not in item and not item.startswith(("data=", "trainer.epochs=", "output"))
    ]
    runs = []
    for cache in ("none", "memory"):
        overrides = [*typed, *OF_FILES, f"data.root={photos}", f"data.cache={cache}", f"output_dir={cache}"]
        done = run_cli(*overrides, "data.batch_size=10", "dist.procs_per_node=2", "trainer.epochs=2")
        assert done.returncode == 0, done.stderr
        (run_dir,) = (file.parent for file in (tmp_path / cache).glob("*/*/run.json"))
        runs.append(run_dir)
    assert_same(*runs)
    assert kept_files() == before


def test_device_changes_no_bit_where_nothing_is_random(train: Callable[..., Path]) -> None:
    fixed = "data.train_transforms=[{name: resize, size: 40}, {name: center_crop, size: 32}]"
    assert_same(train("data.cache=none", fixed), train("data.cache=auto", fixed))


def test_device_trains_as_well_on_other_crops(train: Callable[..., Path]) -> None:
    (one, _), (other, _) = (outcome(train(f"data.cache={cache}", CROPS)) for cache in ("none", "device"))
    assert [row["train_images_digest"] for row in one] == [row["train_images_digest"] for row in other]
    assert one != other


def test_crops_are_reduced_in_training_only(
    train: Callable[..., Path], photos: Path, write_image: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for png in photos.rglob("*.png"):
        write_image(png.with_suffix(".jpg"), seed=1, size=(300, 200))
        png.unlink()
    asked = []
    chosen = ReducingCrop.reduction
    monkeypatch.setattr(ReducingCrop, "reduction", lambda *place: asked.append(chosen(*place)) or asked[-1])
    train("trainer.epochs=1", "data.cache=none")
    assert len(asked) >= 20
    assert set(asked) > {1}
    for whole in ("data.cache=auto", "data.cache=memory", "data.jpeg_reduction=none"):
        asked.clear()
        train("trainer.epochs=1", "data.cache=none", whole)
        assert set(asked) == {1}


@pytest.mark.parametrize(
    ("free", "told"),
    [(None, "stay in memory once they are decoded: about 3 MiB"), (1000, "more than an eighth of the free memory")],
)
def test_what_becomes_of_the_images_is_said_and_changes_no_pixel(
    train: Callable[..., Path],
    photos: Path,
    write_image: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    free: int | None,
    told: str,
) -> None:
    for png in photos.rglob("*.png"):
        write_image(png.with_suffix(".jpg"), seed=1, size=(300, 200))
        png.unlink()
    monkeypatch.setattr("runner.data.cache.cache_policy.available_memory", lambda: free)
    run_dir = train()
    assert told in (run_dir / "logs" / "rank_0.log").read_text()
    assert_same(run_dir, train("data.cache=none", "data.jpeg_reduction=none"))
