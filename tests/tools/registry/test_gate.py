from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError, NotBetterError, RegistryError
from runner.base.files import sha256_of
from runner.cli.commands.models import promote
from runner.tools.registry.folder_registry import FolderRegistry
from runner.tools.registry.gate import paired_bootstrap
from tests.conftest import AWKWARD_CLASSES
from tests.tools.registry.conftest import small_draft


def test_the_bootstrap_agrees_with_the_normal_distribution():
    advantages = np.random.default_rng(0).normal(0.1, 1.0, 2000)
    least, share = paired_bootstrap(advantages, confidence=0.95, seed=0)
    error = advantages.std() / np.sqrt(2000)
    assert least == pytest.approx(advantages.mean() - 1.645 * error, abs=0.1 * error)
    assert share > 0.999
    assert paired_bootstrap(advantages, confidence=0.95, seed=0) == (least, share), "the same for the same seed"
    assert paired_bootstrap(advantages, confidence=0.95, seed=1) != (least, share)


def test_equal_models_are_never_better():
    assert paired_bootstrap(np.zeros(10), confidence=0.5, seed=0) == (0.0, 0.0)


def test_one_image_of_a_hundred_is_no_proof():
    advantages = np.zeros(100)
    advantages[7] = 1.0
    _, share = paired_bootstrap(advantages, confidence=0.95, seed=0)
    assert share == pytest.approx(1 - np.exp(-1), abs=0.02), "the image is in a resample, or it isn't"


def _guessing(model: Path, folder: Path, guess: int) -> None:
    """A package whose model always guesses the same class."""
    import safetensors.torch

    shutil.copytree(model, folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["fc.weight"].zero_()
    tensors["fc.bias"].zero_()
    tensors["fc.bias"][guess] = 3.0
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    card = json.loads((folder / "model.json").read_text())
    card["weights_sha256"] = sha256_of(folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps(card))


@pytest.fixture
def registry(trained, tmp_path) -> FolderRegistry:
    """Version 1 always guesses the last class, version 2 the first, version 3 does as version 2."""
    registry = FolderRegistry(tmp_path / "models")
    for number, guess in enumerate((2, 0, 0), 1):
        package = tmp_path / f"package{number}"
        _guessing(trained / "model", package, guess)
        registry.add("birds", replace(small_draft(), write=lambda folder: shutil.copytree(package, folder / "model")))  # noqa: B023
    return registry


@pytest.fixture
def photos(trained, tmp_path) -> Path:
    """Images of the first class."""
    own = trained.parents[2] / "photos" / "val" / AWKWARD_CLASSES[0]
    shutil.copytree(own, tmp_path / "photos" / AWKWARD_CLASSES[0])
    return tmp_path / "photos"


def test_a_version_is_promoted_only_where_it_is_better(registry, photos, capsys):
    def call(version: int, *more: str) -> int:
        given = ("name=birds", "alias=champion", f"version={version}", f"if_better_on={photos}", "device=cpu", *more)
        return promote.run([*given, f"registry.uri={registry.place}"])

    assert call(1) == 0
    assert "no version has the alias champion yet, so there is nothing to compare with" in capsys.readouterr().out
    assert call(2) == 0
    text = capsys.readouterr().out
    assert "version 2 against version 1, top1 100.00% against 0.00% on 7 images" in text
    assert "an advantage of +100.00 points, at least +100.00 points with confidence 0.95" in text
    assert "birds@champion is version 2, was version 1" in text
    for metric in ("top1", "loss"):
        with pytest.raises(NotBetterError, match=r"birds@champion stays version 2: .* better in 0\.00% of 9,999"):
            call(1, f"metric={metric}")
        with pytest.raises(NotBetterError, match=r"better in 0\.00%"):
            call(3, f"metric={metric}")
    assert call(2) == 0
    assert "is version 2 already" in capsys.readouterr().out
    assert NotBetterError.exit_code == 2
    assert registry.aliases("birds") == {"champion": 2}


def test_without_a_gate_the_newest_is_promoted(registry, capsys):
    promote.run(["name=birds", "alias=champion", f"registry.uri={registry.place}"])
    assert registry.aliases("birds") == {"champion": 3}
    with pytest.raises(RegistryError, match="has no birds/9"):
        promote.run(["name=birds", "alias=champion", "version=9", f"registry.uri={registry.place}"])
    with pytest.raises(RegistryError, match="has no model 'ants'"):
        promote.run(["name=ants", "alias=champion", f"registry.uri={registry.place}"])


def test_images_that_are_too_few_or_none_prove_nothing(registry, photos):
    registry.set_alias("birds", "champion", 1)
    call = ["name=birds", "alias=champion", "version=2", f"registry.uri={registry.place}"]
    for image in list((photos / AWKWARD_CLASSES[0]).iterdir())[1:]:
        image.unlink()
    with pytest.raises(InvalidDatasetError, match="too few to compare"):
        promote.run([*call, f"if_better_on={photos}"])
    (photos / AWKWARD_CLASSES[0]).rename(photos / "strange")
    with pytest.raises(InvalidDatasetError, match="strange"):
        promote.run([*call, f"if_better_on={photos}"])
    assert registry.aliases("birds") == {"champion": 1}
