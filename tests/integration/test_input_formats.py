"""Whole trainings on images of other channels, bits and shapes, and all that is done with their models."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import runner
from runner.base.errors import ConfigError, InvalidDatasetError
from runner.cli.commands import evaluate, export, predict, resume
from runner.cli.commands import report as report_command
from runner.cli.commands.dataset import check as dataset_check
from runner.cli.commands.dataset import show as dataset_show
from runner.config.schema.data import DataConfig
from runner.data.images.decode import open_image
from runner.data.images.stored import InputFormat
from runner.data.images.transforms import Normalizer, as_tensor, pipeline_of
from runner.run.package import read_package

CHANNELS = {
    1: ("data.channels=1", "data.normalize.mean=[0.4]", "data.normalize.std=[0.2]"),
    4: ("data.channels=4", "data.normalize.mean=[0.4,0.4,0.4,0.5]", "data.normalize.std=[0.2,0.2,0.2,0.3]"),
}
DEEP = (*CHANNELS[1], "data.bit_depth=16")
WHOLE = "data.train_transforms=[{name: resize, size: [32, 48]}, {name: random_horizontal_flip}]"
LETTERBOX = ("data.image_size=[32,48]", "data.resize=letterbox", "data.fill=128", WHOLE)
SQUASH = ("data.image_size=[48,32]", "data.resize=squash")


def picture(kind: str, label: int, seed: int) -> Image.Image:
    """An image of an extreme or usual aspect ratio, darker or brighter by its class."""
    generator = np.random.default_rng(seed)
    height, width = [(40, 40), (20, 90), (90, 20), (2, 60)][seed % 4]
    values = generator.integers(0, 20_000, (height, width)) + label * 30_000
    match kind:
        case "scan":
            return Image.fromarray(values.astype(np.uint16))
        case "grey":
            return Image.fromarray((values // 257).astype(np.uint8))
        case _:
            tile = np.dstack([values // 257] * 3 + [generator.integers(0, 256, (height, width))])
            return Image.fromarray(tile.astype(np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, str], Path]:
    def make(kind: str, suffix: str) -> Path:
        for split, count in (("train", 8), ("val", 4)):
            for label, name in enumerate(("dark", "bright")):
                place = tmp_path / kind / split / name
                place.mkdir(parents=True)
                for number in range(count):
                    picture(kind, label, 100 * label + number + 50 * (split == "val")).save(
                        place / f"{number}.{suffix}"
                    )
        return tmp_path / kind

    return make


@pytest.fixture
def train(tiny: Callable[..., list[str]]) -> Callable[..., Path]:
    def fit(root: Path, *more: str) -> Path:
        typed = [item for item in tiny() if "num_" not in item and not item.startswith("data=")]
        own = ("data=folder", f"data.root={root}", "data.batch_size=8", "trainer.epochs=1", "trainer.monitor=val_loss")
        return runner.fit(runner.load_config([*typed, *own, *more])).run_dir

    return fit


KINDS: list[Any] = [
    ("grey", "png", (*CHANNELS[1], *LETTERBOX), (1, 32, 48)),
    ("scan", "png", (*DEEP, *LETTERBOX), (1, 32, 48)),
    ("scan", "tif", (*DEEP, *SQUASH, "data.cache=memory"), (1, 48, 32)),
    ("tile", "tif", (*CHANNELS[4], *LETTERBOX, "data.cache=device"), (4, 32, 48)),
    ("tile", "png", (*CHANNELS[4], "data.image_size=[32,48]", "data.workers=2"), (4, 32, 48)),
    ("grey", "png", (*CHANNELS[1], "data.image_size=32", "data.eval_image_size=[48,40]"), (1, 48, 40)),
]


@pytest.mark.any_loss
@pytest.mark.parametrize(("kind", "suffix", "options", "shape"), KINDS)
def test_training_package_evaluation_prediction_report(
    folder, train, tmp_path: Path, kind: str, suffix: str, options: tuple[str, ...], shape: tuple[int, int, int]
) -> None:
    root = folder(kind, suffix)
    run = train(root, *options)
    card = read_package(run).card.preprocessing
    height_and_width = [shape[1], shape[2]]
    assert (card.channels, list(card.image_size)) == (shape[0], height_and_width)  # type: ignore[arg-type]

    model = runner.load_model(run)
    files = sorted((root / "val").rglob(f"*.{suffix}"))
    seen = torch.stack([model.transform(Image.open(file)) for file in files])
    assert seen.shape == (8, *shape)
    assert seen.dtype == torch.float32
    # The bits are those that evaluation sees.
    form = InputFormat.of(card)
    stored = [as_tensor(open_image(str(file), form=form).pixels()) for file in files]
    prepared = torch.stack([pipeline_of(card.transforms, form)(image) for image in stored])
    assert torch.equal(Normalizer(card.normalize)(prepared), seen)

    assert evaluate.run([f"run={run}"]) == 0
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    assert metrics["count"] == 8
    assert metrics["data"]["channels"] == shape[0]
    output = tmp_path / "scores.csv"
    here = ("device=cpu", "precision=fp32", "workers=0")
    assert predict.run([f"run={run}", f"input={root / 'val'}", f"output={output}", *here]) == 0
    with output.open(newline="") as text:
        rows = {row["path"]: row for row in csv.DictReader(text)}
    with torch.inference_mode():
        scores = model.module(seen).softmax(dim=1)
    for file, score in zip(files, scores.tolist(), strict=True):
        row = rows[str(file.relative_to(root / "val"))]
        assert not row["error"]
        found = [float(value) for name, value in row.items() if name.startswith("Scored Probabilities")]
        assert sorted(found) == pytest.approx(sorted(score), abs=1e-5)
    assert report_command.run([f"run={run}"]) == 0
    assert metrics["correct"] < 8, "an untrained model makes mistakes, which the report shows"
    assert (run / "report.html").read_text().count("data:image/") >= 8 - metrics["correct"]
    assert list((run / "tensorboard").iterdir())


@pytest.mark.any_loss
@pytest.mark.parametrize("include_preprocessing", [True, False])
def test_export_of_16_bits_in_a_rectangle(folder, train, tmp_path: Path, include_preprocessing: bool) -> None:
    run = train(folder("scan", "png"), *DEEP, *LETTERBOX)
    output = tmp_path / "model.torchscript"
    argv = [f"run={run}", "format=torchscript", f"output={output}", f"include_preprocessing={include_preprocessing}"]
    assert export.run(argv) == 0
    described = json.loads(next(tmp_path.glob("model.torchscript*.json")).read_text())
    assert described["input"]["dtype"] == "float32"
    if include_preprocessing:
        assert described["input"]["shape"] == ["batch", 32, 48, 1]
        assert described["input"]["meaning"].endswith("under preprocessing, as value / 65535")
    else:
        assert described["input"]["shape"] == ["batch", 1, 32, 48]
        assert (
            described["input"]["meaning"].startswith("grey after") and "pixel / 65535" in described["input"]["meaning"]
        )
    assert described["preprocessing"]["resize"] == "letterbox"
    assert described["agreement"]["count"] == 8


@pytest.mark.any_loss
def test_a_cache_changes_no_bit_of_16_bits(folder, train) -> None:
    root = folder("scan", "png")
    runs = [train(root, *DEEP, *LETTERBOX, f"data.cache={cache}") for cache in ("none", "memory")]
    runs.append(train(root, *DEEP, *LETTERBOX, "data.cache=none", "data.workers=2"))
    assert len({(run / "model/model.safetensors").read_bytes() for run in runs}) == 1


@pytest.mark.any_loss
def test_the_first_layer_and_depth_are_fixed_on_resume(folder, train) -> None:
    run = train(folder("scan", "png"), *DEEP, *LETTERBOX)
    with pytest.raises(ConfigError) as refused:
        resume.run([f"run={run}", "trainer.epochs=2", "data.bit_depth=8", "data.resize=squash"])
    assert {problem.key for problem in refused.value.problems} == {"data.bit_depth", "data.resize"}
    with pytest.raises(ConfigError) as refused:
        colours = ("data.normalize.mean=[0.4,0.4,0.4]", "data.normalize.std=[0.2,0.2,0.2]", "data.bit_depth=8")
        resume.run([f"run={run}", "trainer.epochs=2", "data.channels=3", *colours, "resume.allow=[data]"])
    assert [problem.key for problem in refused.value.problems] == ["data.channels"]
    assert resume.run([f"run={run}", "trainer.epochs=2"]) == 0


@pytest.mark.any_loss
def test_a_run_of_before_these_keys_is_resumed_and_loaded(tiny) -> None:
    run = runner.fit(runner.load_config(tiny("trainer.epochs=1"))).run_dir
    new = {"channels", "bit_depth", "resize", "fill", "follow_weights"}
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert new <= saved["data"].keys()
    saved["data"] = {key: value for key, value in saved["data"].items() if key not in new}
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    card = json.loads((run / "model/model.json").read_text())
    card["preprocessing"] = {key: value for key, value in card["preprocessing"].items() if key not in new}
    del saved["model"]["checkpoint_activations"], saved["trainer"]["unfreeze"], saved["optimizer"]["groups"]
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    del card["architecture"]["checkpoint_activations"]
    (run / "model/model.json").write_text(json.dumps(card))
    assert runner.load_model(run).module(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
    assert evaluate.run([f"run={run}"]) == 0
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    metrics["data"] = {key: value for key, value in metrics["data"].items() if key not in new}
    (run / "evaluation/metrics.json").write_text(json.dumps(metrics))
    assert evaluate.run([f"run={run}"]) == 0
    assert resume.run([f"run={run}", "trainer.epochs=2"]) == 0


@pytest.mark.any_loss
@pytest.mark.parametrize("cache", ["none", "device"])
def test_batches_without_a_good_image_have_the_model_s_channels(folder, train, cache: str) -> None:
    root = folder("scan", "png")
    for file in sorted((root / "train").rglob("*.png"))[3:13]:
        file.write_bytes(b"")
    # Six good images of 16, in batches of two: at least two batches have none.
    skipping = ("data.on_bad_image=skip", "data.max_bad_fraction=0.9", "data.batch_size=2", f"data.cache={cache}")
    # Without BatchNorm, which would learn from single images here.
    run = train(
        root, *DEEP, *LETTERBOX, *skipping, "model=torchvision", "model.name=squeezenet1_1", "optimizer.lr=1e-6"
    )
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert (row["train_images"], row["train_images_skipped"]) == (6, 10)


def test_ink_in_a_folder_of_tiles_is_a_bad_image(folder, train) -> None:
    root = folder("tile", "tif")
    Image.new("CMYK", (30, 30)).save(root / "train/dark/0.tif")
    with pytest.raises(InvalidDatasetError, match=r"0\.tif: .*CMYK"):
        train(root, *CHANNELS[4], *LETTERBOX)


def test_the_check_prints_statistics_that_an_experiment_takes(folder, tmp_path: Path, capsys) -> None:
    root = folder("scan", "png")
    (root / "train/dark/broken.png").write_bytes(b"")
    options = ("data=folder", f"data.root={root}", *DEEP, *LETTERBOX)
    printed = {}
    for workers in (0, 2):
        argv = ["statistics=true", f"output={tmp_path / str(workers)}", f"data.workers={workers}", *options]
        assert dataset_check.run(argv) == 0
        printed[workers] = capsys.readouterr().out
    text = printed[0]
    start = text.index("# 16 training images after data.eval_transforms, with data.channels=1 and data.bit_depth=16")
    values = yaml.safe_load(text[start : text.index("report:")])["data"]["normalize"]
    assert text[start : text.index("report:")] in printed[2]
    data: DataConfig = runner.load_config(options).data
    form = InputFormat.of(data)
    pixels = [
        pipeline_of(data.eval_transforms, form)(as_tensor(open_image(str(file), form=form).pixels())).double()
        for file in sorted((root / "train").rglob("[0-9].png"))
    ]
    stacked = torch.stack(pixels)
    assert values["mean"] == [pytest.approx(stacked.mean().item(), abs=1e-6)]
    assert values["std"] == [pytest.approx(stacked.std(correction=0).item(), abs=1e-6)]
    found = json.loads((tmp_path / "0/check.json").read_text())["statistics"]
    assert found == json.loads((tmp_path / "2/check.json").read_text())["statistics"]
    assert found["num_images"] == 16
    typed = [f"data.normalize.{name}={value}" for name, value in values.items()]
    assert runner.load_config([*options, *typed]).data.normalize.mean == tuple(values["mean"])


def test_a_constant_channel_gets_a_deviation_that_can_be_divided_by(folder, tmp_path: Path, capsys) -> None:
    root = folder("grey", "png")
    options = ("data=folder", f"data.root={root}", *CHANNELS[4], *SQUASH, "data.workers=0")
    assert dataset_check.run(["statistics=true", f"output={tmp_path / 'out'}", *options]) == 0
    text = capsys.readouterr().out
    assert "# constant in channel 4" in text
    assert yaml.safe_load(text[text.index("data:\n") : text.index("report:")])["data"]["normalize"]["std"][3] == 1.0


@pytest.mark.parametrize(("kind", "suffix", "options", "shape"), [KINDS[0], KINDS[1], KINDS[3]])
def test_a_contact_sheet_of_each_format(folder, tmp_path: Path, kind: str, suffix: str, options, shape) -> None:
    output = tmp_path / "sheet.png"
    root = folder(kind, suffix)
    assert dataset_show.run([f"output={output}", "num_images=2", "data=folder", f"data.root={root}", *options]) == 0
    with Image.open(output) as sheet:
        assert sheet.mode == "RGB"


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        (("data.channels=1",), "data.normalize.mean", "must be a list of 1, one for each of data.channels"),
        (("data.channels=2",), "data.channels", "must be 1, 3 or 4"),
        (("data.bit_depth=16",), "data.bit_depth", "needs data.channels=1"),
        (("data.bit_depth=12",), "data.bit_depth", "must be 8 or 16"),
        (("data.image_size=[32]",), "data.image_size", "must be"),
        (("data.image_size=[32,0]",), "data.image_size", "must be"),
        (("data.resize=fit",), "data.resize", "must be 'crop', 'letterbox' or 'squash'"),
        (("data.fill=256",), "data.fill", "must be at most 255"),
    ],
)
def test_mistakes_are_named(options: tuple[str, ...], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        runner.load_config(["data=folder", "data.root=photos", *options])
    found = {problem.key: problem for problem in refused.value.problems}
    problem = next(found[name] for name in found if name.startswith(key))
    assert said in problem.message
