"""Every data set of torchvision that the runner offers, read from small files in the format of the real ones."""

from __future__ import annotations

import json
import pickle
import shutil
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torchvision
from PIL import Image
from scipy.io import savemat

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig, TorchvisionDatasetName
from runner.data.source import ImageSource
from runner.data.sources import torchvision as torchvision_module
from runner.data.sources.paths import resolve_paths
from runner.data.sources.torchvision import open_torchvision
from runner.data.splits import open_splits

# Label 0 is dark, label 1 is bright.
LABELS = {"train": [0, 1, 1], "test": [0, 1], "val": [1, 0]}


def level(label: int) -> int:
    return 200 if label else 40


def image(label: int, side: int = 12) -> Image.Image:
    return Image.new("RGB", (side, side), (level(label),) * 3)


def save(path: Path, label: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image(label).save(path, quality=95)


def pixel_array(split: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.stack([np.full(shape, level(label), np.uint8) for label in LABELS[split]])


def write_mnist(root: Path, name: str) -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels, labels = pixel_array(split, (28, 28)), np.array(LABELS[split], np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + values.tobytes())


def write_cifar10(root: Path, _name: str) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels = pixel_array("train", (3072,))
    for number in range(1, 6):
        entries = slice(number - 1, number)  # the last two files are empty
        content = {"data": pixels[entries], "labels": LABELS["train"][entries]}
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(content))
    content = {"data": pixel_array("test", (3072,)), "labels": LABELS["test"]}
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["dark", "bright"]}))


def write_cifar100(root: Path, _name: str) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        content = {"data": pixel_array(split, (3072,)), "fine_labels": LABELS[split]}
        (folder / split).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["dark", "bright"]}))


def write_svhn(root: Path, _name: str) -> None:
    root.mkdir(parents=True)
    for split in ("train", "test"):
        pixels = pixel_array(split, (32, 32, 3)).transpose(1, 2, 3, 0)
        # The digit 0 is stored as 10.
        labels = np.array([[label or 10] for label in LABELS[split]])
        savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": labels})


def write_stl10(root: Path, _name: str) -> None:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        pixel_array(split, (3, 96, 96)).tofile(folder / f"{split}_X.bin")
        (np.array(LABELS[split], np.uint8) + 1).tofile(folder / f"{split}_y.bin")
    (folder / "class_names.txt").write_text("dark\nbright\n")


def write_eurosat(root: Path, _name: str) -> None:
    for number, label in enumerate(LABELS["train"]):
        save(root / f"eurosat/2750/{'ab'[label]}/{number}.jpg", label)


def write_dtd(root: Path, _name: str) -> None:
    for split, labels in LABELS.items():
        files = [f"{'ab'[label]}/{split}_{number}.jpg" for number, label in enumerate(labels)]
        for file, label in zip(files, labels, strict=True):
            save(root / "dtd/dtd/images" / file, label)
        listing = root / f"dtd/dtd/labels/{split}1.txt"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text("\n".join(files))


def write_aircraft(root: Path, _name: str) -> None:
    folder = root / "fgvc-aircraft-2013b/data"
    names = ["A 300", "B 747"]
    for split, labels in LABELS.items():
        for number, label in enumerate(labels):
            save(folder / f"images/{split}{number}.jpg", label)
        lines = [f"{split}{number} {names[label]}" for number, label in enumerate(labels)]
        (folder / f"images_variant_{split}.txt").write_text("\n".join(lines))
    (folder / "variants.txt").write_text("\n".join(names))


def write_flowers(root: Path, _name: str) -> None:
    folder = root / "flowers-102"
    numbers: dict[str, list[int]] = {}
    all_labels: list[int] = []
    for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        numbers[key] = []
        for label in LABELS[split]:
            all_labels.append(label + 1)
            numbers[key].append(len(all_labels))
            save(folder / f"jpg/image_{len(all_labels):05d}.jpg", label)
    savemat(folder / "imagelabels.mat", {"labels": np.array([all_labels])})
    savemat(folder / "setid.mat", {key: np.array([ids]) for key, ids in numbers.items()})


def write_food(root: Path, _name: str) -> None:
    folder = root / "food-101"
    for split in ("train", "test"):
        listing: dict[str, list[str]] = {"pie": [], "rice": []}
        for number, label in enumerate(LABELS[split]):
            file = f"{('pie', 'rice')[label]}/{split}{number}"
            save(folder / f"images/{file}.jpg", label)
            listing[file.partition("/")[0]].append(file)
        (folder / "meta").mkdir(exist_ok=True)
        (folder / f"meta/{split}.json").write_text(json.dumps(listing))


def write_gtsrb(root: Path, _name: str) -> None:
    folder = root / "gtsrb"
    for number, label in enumerate(LABELS["train"]):
        save(folder / f"GTSRB/Training/{label:05d}/{number:05d}.ppm", label)
    lines = ["Filename;ClassId"]
    for number, label in enumerate(LABELS["test"]):
        save(folder / f"GTSRB/Final_Test/Images/{number:05d}.ppm", label)
        lines.append(f"{number:05d}.ppm;{label}")
    (folder / "GT-final_test.csv").write_text("\n".join(lines))


def write_pets(root: Path, _name: str) -> None:
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for split, listing in (("train", "trainval"), ("test", "test")):
        lines = []
        for number, label in enumerate(LABELS[split]):
            name = f"{('Abyssinian', 'beagle')[label]}_{split}{number}"
            save(folder / f"images/{name}.jpg", label)
            lines.append(f"{name} {label + 1} {label + 1} 1")
        (folder / f"annotations/{listing}.txt").write_text("\n".join(lines))


WRITERS: dict[str, tuple[Callable[[Path, str], None], tuple[str, str] | None]] = {
    "CIFAR10": (write_cifar10, ("dark", "bright")),
    "CIFAR100": (write_cifar100, ("dark", "bright")),
    "DTD": (write_dtd, ("a", "b")),
    "EuroSAT": (write_eurosat, ("a", "b")),
    "FGVCAircraft": (write_aircraft, ("A 300", "B 747")),
    "FashionMNIST": (write_mnist, ("T-shirt/top", "Trouser")),
    "Flowers102": (write_flowers, ("pink primrose", "hard-leaved pocket orchid")),
    "Food101": (write_food, ("pie", "rice")),
    "GTSRB": (write_gtsrb, ("0", "1")),
    "KMNIST": (write_mnist, ("o", "ki")),
    "MNIST": (write_mnist, ("0 - zero", "1 - one")),
    "OxfordIIITPet": (write_pets, ("Abyssinian", "Beagle")),
    "STL10": (write_stl10, ("dark", "bright")),
    "SVHN": (write_svhn, ("0", "1")),
}


@pytest.fixture
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our files are not the real ones; that they exist is still checked."""
    for module in ("cifar", "flowers102", "stl10", "svhn"):
        monkeypatch.setattr(
            getattr(torchvision.datasets, module),
            "check_integrity",
            lambda path, md5=None: Path(path).is_file() or "unlabeled" in str(path),
        )


def check(source: ImageSource | None, labels: list[int]) -> None:
    assert source is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == labels
    assert len(source) == len(labels)
    for number, label in enumerate(labels):
        pixels = source.open(number).pixels()
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3
        assert np.abs(pixels.astype(int) - level(label)).max() <= 2


def test_every_name_is_tried() -> None:
    assert set(WRITERS) == set(get_args(TorchvisionDatasetName))


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("name", WRITERS)
def test_labels_classes_and_pixels(tmp_path: Path, data_config: Callable[..., DataConfig], name: str) -> None:
    write, classes = WRITERS[name]
    root = tmp_path / "root"
    write(root, name)
    opened = open_torchvision(resolve_paths(data_config("torchvision", name=name, root=root)))  # type: ignore[arg-type]
    assert opened.classes[:2] == classes
    check(opened.train, LABELS["train"])
    if name == "EuroSAT":
        assert opened.test is None
    else:
        check(opened.test, LABELS["test"])
    if name in ("DTD", "FGVCAircraft", "Flowers102"):
        check(opened.val, LABELS["val"])
    else:
        assert opened.val is None
    assert opened.train.describe(2) == f"{name} train, image 2"
    assert (pickle.loads(pickle.dumps(opened.train)).open(1).pixels() == opened.train.open(1).pixels()).all()


def test_validation_is_made_where_the_authors_made_none(tmp_path: Path, data_config: Callable[..., DataConfig]) -> None:
    write_mnist(tmp_path, "MNIST")
    splits = open_splits(resolve_paths(data_config("torchvision", name="MNIST", root=tmp_path)), 1)
    assert (len(splits.train), len(splits.val)) == (2, 1)
    assert splits.test is not None
    assert "1 of 3 training images" in splits.notes[0]


def test_files_that_are_there_are_not_written_to(
    tmp_path: Path, data_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path, "MNIST")
    # A read-only disk; tests may run as root, whom permissions do not stop.
    monkeypatch.setattr(torchvision_module.os, "access", lambda *_: False)
    open_torchvision(resolve_paths(data_config("torchvision", name="MNIST", root=tmp_path)))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def test_a_download_that_fails(
    tmp_path: Path, data_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError("Network is unreachable")

    monkeypatch.setattr(torchvision.datasets.utils.urllib.request, "urlopen", refuse)
    data = resolve_paths(data_config("torchvision", name="CIFAR10", root=tmp_path / "data"))
    with pytest.raises(InvalidDatasetError) as caught:
        open_splits(data, 1)
    text = str(caught.value)
    assert f"CIFAR10 is not in data.root = {tmp_path}/data and can't be downloaded" in text
    assert "Network is unreachable" in text
    assert "torchvision.datasets.CIFAR10('FOLDER', download=True)" in text


def test_a_root_that_can_not_be_made(tmp_path: Path, data_config: Callable[..., DataConfig]) -> None:
    (tmp_path / "file").touch()
    data = resolve_paths(data_config("torchvision", name="CIFAR10", root=tmp_path / "file/data"))
    with pytest.raises(InvalidDatasetError, match=r"file/data"):
        open_splits(data, 1)


def test_splits_that_disagree_on_classes(tmp_path: Path, data_config: Callable[..., DataConfig]) -> None:
    write_dtd(tmp_path, "DTD")
    # A listing that was cut short: torchvision numbers the classes of each listing anew.
    (tmp_path / "dtd/dtd/labels/val1.txt").write_text("b/val_0.jpg")
    data = resolve_paths(data_config("torchvision", name="DTD", root=tmp_path))
    with pytest.raises(
        InvalidDatasetError, match=r"DTD in data.root = .*its splits val and train differ in their classes"
    ):
        open_splits(data, 1)


def test_a_damaged_image_is_named(tmp_path: Path, data_config: Callable[..., DataConfig]) -> None:
    write_food(tmp_path, "Food101")
    opened = open_torchvision(resolve_paths(data_config("torchvision", name="Food101", root=tmp_path)))  # type: ignore[arg-type]
    for file in (tmp_path / "food-101/images/rice").iterdir():
        file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InvalidDatasetError, match="Food101 train, image 1: can't be read"):
        opened.train.open(1).pixels()


def test_a_missing_split_is_downloaded(
    tmp_path: Path, data_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: torchvision.datasets.MNIST) -> None:
        if not self._check_exists():
            shutil.rmtree(tmp_path / "MNIST", ignore_errors=True)
            write_mnist(tmp_path, "MNIST")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    opened = open_torchvision(resolve_paths(data_config("torchvision", name="MNIST", root=tmp_path)))  # type: ignore[arg-type]
    check(opened.train, LABELS["train"])
