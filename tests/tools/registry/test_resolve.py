from __future__ import annotations

from pathlib import Path

import pytest

import runner
from runner.base.errors import CheckpointError, ConfigError, RegistryError
from runner.cli.commands import evaluate, export, predict
from runner.tools.registry.folder_registry import FolderRegistry
from runner.tools.registry.resolve import alias_version, folder_of, open_registry, resolve_model
from tests.tools.registry.conftest import small_draft


@pytest.fixture
def uri(registry) -> str:
    registry.add("birds", small_draft())
    registry.add("birds", small_draft(b"second"))
    registry.set_alias("birds", "champion", 2)
    return registry.place


def test_a_reference_is_resolved_to_the_folder_of_its_package(uri):
    assert resolve_model("models:/birds@champion", uri) == Path(uri) / "birds" / "2" / "model"
    assert resolve_model("models:/birds/1", uri) == Path(uri) / "birds" / "1" / "model"
    assert alias_version("models:/birds@champion", uri) == 2
    FolderRegistry(Path(uri)).set_alias("birds", "champion", 1)
    assert alias_version("models:/birds@champion", uri) == 1


def test_another_text_is_a_path(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_the_registry_is_the_folder_models_or_what_the_environment_says(uri, tmp_path, monkeypatch):
    monkeypatch.delenv("RUNNER_REGISTRY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert open_registry(None).place == uri
    monkeypatch.chdir("/")
    monkeypatch.setenv("RUNNER_REGISTRY", uri)
    assert open_registry(None).place == uri
    assert open_registry(str(tmp_path)).place == str(tmp_path), "what is typed comes first"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("models:/birds@challenger", "birds has no alias 'challenger'; it has champion"),
        ("models:/birds/3", "has no birds/3; versions are 1, 2"),
        ("models:/ants@champion", "has no model 'ants'"),
        ("models:/ants/1", "has no model 'ants'"),
    ],
)
def test_what_is_not_registered_is_said(uri, reference, message):
    for function in (resolve_model, alias_version):
        with pytest.raises(RegistryError, match=message):
            function(reference, uri)


def test_an_alias_of_a_version_that_is_gone_is_said(uri):
    (Path(uri) / "birds" / "aliases.json").write_text('{"champion": 9}')
    with pytest.raises(RegistryError, match="has no birds/9"):
        resolve_model("models:/birds@champion", uri)


def test_either_a_run_or_a_model_is_given(uri, tmp_path):
    for run, model in ((None, None), (str(tmp_path), str(tmp_path))):
        with pytest.raises(ConfigError, match="give run=DIR"):
            folder_of(run, model, uri)
    with pytest.raises(CheckpointError, match="none: there is no such folder"):
        folder_of(None, str(tmp_path / "none"), uri)
    assert folder_of(None, "models:/birds@champion", uri).name == "model"


@pytest.fixture
def registered(trained, tmp_path) -> str:
    """The registry with the package of a trained run, which is enough to use it."""
    import shutil
    from dataclasses import replace

    registry = FolderRegistry(tmp_path / "registry")
    draft = replace(small_draft(), write=lambda folder: shutil.copytree(trained / "model", folder / "model"))
    registry.set_alias("birds", "champion", registry.add("birds", draft))
    return registry.place


def test_a_registered_model_is_loaded_and_scores(trained, registered, tmp_path, monkeypatch):
    assert (
        runner.load_model("models:/birds@champion", registry=registered).classes == runner.load_model(trained).classes
    )
    photos, model = trained.parents[2] / "photos" / "val", "model=models:/birds/1"
    monkeypatch.setenv("RUNNER_REGISTRY", registered)
    output = tmp_path / "scores.csv"
    predict.run([model, f"input={photos}", f"output={output}", "precision=fp32"])
    assert len(output.read_text().splitlines()) == 22


def test_a_registered_model_is_evaluated_as_its_run_was(trained, registered, tmp_path):
    photos, folder = trained.parents[2] / "photos", tmp_path / "result"
    call = ["model=models:/birds@champion", f"registry.uri={registered}", f"output={folder}"]
    own = ["trainer.precision=fp32", "data.batch_size=8", "data.workers=0"]
    assert evaluate.run([*call, f"data.root={photos}", *own]) == 0
    import json

    found, of_run = (json.loads((place / "metrics.json").read_text()) for place in (folder, trained / "evaluation"))
    for name in ("count", "top1", "loss", "confusion_matrix", "weights"):
        assert found[name] == of_run[name], name
    assert (folder / "predictions.csv").is_file()
    assert sorted(path.name for path in (Path(registered) / "birds" / "1" / "model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a package alone needs a folder for the results"),
        (["output={tmp}/o"], "a package alone has no images: give data.val=FOLDER"),
        (["output={tmp}/o", "data.val={tmp}", "checkpoint=last"], "a package has the best weights only"),
        (["output={tmp}/o", "data.val={tmp}", "weights=raw"], "a package has the best weights only"),
        (["output={tmp}/o", "data.val={tmp}", "optimizer.lr=1"], "belongs to the training"),
        (["output={tmp}/o", "data.val={tmp}", "run={tmp}"], "not both"),
    ],
)
def test_what_an_evaluation_of_a_package_lacks_is_said(registered, tmp_path, arguments, message):
    typed = [argument.format(tmp=tmp_path) for argument in arguments]
    with pytest.raises(ConfigError, match=message):
        evaluate.run(["model=models:/birds@champion", f"registry.uri={registered}", *typed])
    assert not (tmp_path / "o").exists()


def test_a_registered_model_is_exported(trained, registered, tmp_path):
    photos, file = trained.parents[2] / "photos", tmp_path / "model.pt"
    call = ["model=models:/birds@champion", f"registry.uri={registered}", "format=torchscript"]
    assert export.run([*call, f"output={file}", f"data.val={photos / 'val'}"]) == 0
    assert file.is_file()
    for more, message in ((["data.val=x"], "needs a file to write"), ([f"output={file}2", "seed=2"], "only data.root")):
        with pytest.raises(ConfigError, match=message):
            export.run([*call, *more])
