"""`dataset show`: the sheet holds the very pixels that training gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from runner.base.errors import ConfigError, InvalidDatasetError, OutputError
from runner.cli.commands.dataset import show as dataset_show
from runner.data.loader.order import epoch_order
from runner.data.splits import open_splits
from runner.library import load_config
from runner.tools.dataset import show
from runner.tools.dataset.show import each_class_in_turn
from runner.training.assemble import preview_batches


@pytest.fixture
def photos(tmp_path, write_image):
    for number, label in enumerate(["ants", "ぺんぎん\n🐧", "x" * 200]):
        for image in range(4):
            write_image(tmp_path / "photos/train" / label / f"{image}.png", 10 * number + image, size=(70, 50))
    return tmp_path / "photos"


def tile(sheet: Image.Image, row: int, column: int, side: int) -> np.ndarray:
    left = show._NAME_WIDTH + show._GAP + column * (side + show._GAP)
    top = show._LINE + row * (side + show._GAP)
    return np.asarray(sheet.crop((left, top, left + side, top + side)))


def test_the_samples_are_what_training_gets(tmp_path, photos, capsys):
    overrides = ["data=folder", f"data.root={photos}", "data.image_size=128", "seed=5", "data.workers=0"]
    argv = [*overrides, f"output={tmp_path}/sheet.png", "num_images=3", "num_samples=2", "epoch=4"]
    assert dataset_show.run(argv) == 0
    sheet = Image.open(tmp_path / "sheet.png")
    from runner.data.sources.paths import resolve_paths

    config = load_config(overrides)
    config = config.model_copy(update={"data": resolve_paths(config.data)})
    splits = open_splits(config.data, config.seed)
    batches = preview_batches(config, splits)
    labels = splits.train.labels
    shown = each_class_in_turn(labels, epoch_order(len(labels), 5, 3))[:3]
    assert sorted(labels[shown]) == [0, 1, 2]
    for row, image in enumerate(shown.tolist()):
        assert np.array_equal(tile(sheet, row, 0, 128)[:50, :70], splits.train.open(image).pixels())
        for column, epoch in ((1, 3), (2, 4)):
            # From the stream that the trainer reads.
            expected = next(
                batch.images[batch.ids.tolist().index(image)]
                for batch in batches.stream(epoch, 0, epoch + 1)
                if image in batch.ids
            )
            pixels = torch.from_numpy(tile(sheet, row, column, 128).copy()).permute(2, 0, 1)
            assert torch.equal(pixels, expected)
    assert "3 images" in capsys.readouterr().out


def test_the_sheet_fits_what_there_is(tmp_path, photos):
    argv = ["data=folder", f"data.root={photos}", "data.image_size=32", f"output={tmp_path}/a/sheet.png"]
    assert dataset_show.run([*argv, "num_images=50", "num_samples=1"]) == 0
    num_shown = len(open_of(photos).train)
    with Image.open(tmp_path / "a/sheet.png") as sheet:
        assert sheet.height == show._LINE + num_shown * (128 + show._GAP)


def open_of(photos):
    from runner.data.sources.paths import resolve_paths

    return open_splits(resolve_paths(load_config(["data=folder", f"data.root={photos}"]).data), 1)


def test_an_image_that_can_not_be_read_makes_room_for_another(tmp_path, photos):
    for path in (photos / "train/ants").iterdir():
        path.write_bytes(b"")
    argv = ["data=folder", f"data.root={photos}", "data.image_size=32", f"output={tmp_path}/sheet.png"]
    assert dataset_show.run([*argv, "num_images=2"]) == 0
    for path in (photos / "train").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(InvalidDatasetError, match="no readable image"):
        dataset_show.run([*argv, "output=other.png"])


def test_what_is_refused(tmp_path, photos):
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(OutputError, match="never overwritten"):
        dataset_show.run(["data=folder", f"data.root={photos}", f"output={tmp_path}/mine.png"])
    assert (tmp_path / "mine.png").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        dataset_show.run([f"output={tmp_path}/sheet.jpg"])
    with pytest.raises(ConfigError, match="output: needs a value"):
        dataset_show.run([])


def test_each_class_comes_in_turn():
    labels = np.array([0, 0, 0, 1, 1, 2])
    order = np.array([1, 0, 2, 5, 4, 3])
    assert each_class_in_turn(labels, order).tolist() == [1, 5, 4, 0, 3, 2]
