import importlib.util
import json
import shutil

import pytest
import torch

import runner
from runner.base.errors import CheckpointError, ConfigError, ExportError, MissingPackageError, OutputError
from runner.base.files import sha256_of
from runner.cli.commands.export import run
from runner.config.saved import load_saved
from runner.tools.export.formats import METADATA_FILE, open_exported
from runner.training.assemble_trained import load_trained
from tests.conftest import TINY
from tests.made_runs import make_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    # The averaged weights lag behind: they are not those that the last step left.
    # The model with the fewest operations, which is what exporting takes its time for.
    options = ("trainer.epochs=1", "trainer.ema_decay=0.99", "trainer.precision=bf16")
    typed = {item.partition("=")[0]: item for item in (*TINY, f"output_dir={folder}", *options)}
    return runner.fit(runner.load_config(list(typed.values()))).run_dir


def metadata_of(format_, file):
    if format_ == "onnx":
        import onnxruntime

        found = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).get_modelmeta()
        return {key: _plain(text) for key, text in found.custom_metadata_map.items()}
    extra = {METADATA_FILE: ""}
    if format_ == "torch_export":
        torch.export.load(file, extra_files=extra)
    else:
        with pytest.warns(FutureWarning) if torch.__version__ >= "2.15" else _quiet():
            torch.jit.load(str(file), _extra_files=extra)
    return json.loads(extra[METADATA_FILE])


def _quiet():
    import warnings

    return warnings.catch_warnings()


def _plain(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(
    ("format_", "include_preprocessing"),
    [("onnx", True), ("torch_export", False), ("torchscript", False)],
)
def test_the_file_alone_says_what_the_packaged_model_says(trained, tmp_path, format_, include_preprocessing, caplog):
    output = tmp_path / f"model 🐜.{'pt2' if format_ == 'torch_export' else format_}"
    argv = [f"run={trained}", f"format={format_}", f"output={output}", f"include_preprocessing={include_preprocessing}"]
    with caplog.at_level("INFO", logger="runner"):
        assert run(argv) == 0
    assert "24 validation images: top-1 agreement 100.00%" in caplog.text

    model = runner.load_model(trained)
    pixels = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    images = torch.stack([model.transform(image) for image in pixels])
    with torch.inference_mode():
        expected = model.module(images)
    exported = open_exported(format_, output)
    with torch.no_grad():
        found = exported(pixels.permute(0, 2, 3, 1) if include_preprocessing else images)
    torch.testing.assert_close(
        found, expected.softmax(dim=1) if include_preprocessing else expected, atol=1e-4, rtol=1e-3
    )

    metadata = metadata_of(format_, output)
    description = json.loads((tmp_path / f"{output.name}.json").read_text())
    assert metadata["classes"] == description["classes"] == list(model.classes)
    assert metadata["preprocessing"]["image_size"] == 32
    assert metadata["run"] == "/".join(trained.parts[-2:])
    assert metadata["input"]["dtype"] == ("uint8" if include_preprocessing else "float32")
    assert metadata["weights"]["sha256"] == sha256_of(trained / "model" / "model.safetensors")
    assert description["sha256"] == sha256_of(output)
    assert (description["agreement"]["count"], description["agreement"]["top1_agreement"]) == (24, 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([output.name, f"{output.name}.json"])


def test_what_does_not_agree_is_not_kept(trained, monkeypatch, tmp_path):
    def wrong(*_):
        return lambda images: torch.eye(4)[torch.arange(len(images)) % 4]

    monkeypatch.setattr("runner.tools.export.export.open_exported", wrong)
    copy = shutil.copytree(trained, tmp_path / "run")
    with pytest.raises(ExportError, match=r"top-1 agreement .*below min_agreement = 1; no file is kept") as caught:
        run([f"run={copy}", "format=torchscript"])
    assert caught.value.exit_code == 1
    assert not (copy / "export").exists()
    assert run([f"run={copy}", "format=torchscript", "min_agreement=0"]) == 0
    assert sorted(path.name for path in (copy / "export").iterdir()) == ["model.pt", "model.pt.json"]


def test_a_model_that_the_exporter_refuses_is_named(trained, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise AssertionError("data-dependent control flow")

    monkeypatch.setattr("torch.export.export", refuse)
    with pytest.raises(ExportError, match=r"as torch_export: AssertionError: data-dependent"):
        run([f"run={trained}", "format=torch_export", f"output={tmp_path}/x.pt2"])
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_pip_command_is_said(trained, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "onnxruntime" else find(name))
    with pytest.raises(MissingPackageError, match=r'needs onnxruntime, .*pip install "onnx>='):
        run([f"run={trained}"])


def test_nothing_is_overwritten_and_a_missing_folder_is_refused_before_torch(trained, tmp_path):
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "other.onnx.json").write_text("mine")
    for name in ("mine.onnx", "other.onnx"):
        with pytest.raises(OutputError, match="already exists and is never overwritten"):
            run([f"run={trained}", f"output={tmp_path / name}"])
    assert (tmp_path / "mine.onnx").read_text() == "mine"
    for missing in (tmp_path / "no" / "x.onnx", tmp_path / "mine.onnx" / "x.onnx"):
        with pytest.raises(OutputError, match="can't be written"):
            run([f"run={trained}", f"output={missing}"])


def test_wrong_calls_are_named(trained, tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}"])
    with pytest.raises(ConfigError, match=r"model\.name: the model is exported as it was trained"):
        run([f"run={trained}", "model.name=resnet34"])
    with pytest.raises(ConfigError, match=r"format = 'tflite'"):
        run([f"run={trained}", "format=tflite"])
    with pytest.raises(CheckpointError, match=r"has no checkpoint 'best': the run has not finished its first epoch"):
        run([f"run={make_run(tmp_path / 'young', TINY, status='running')}"])


def test_checkpoints_by_name_and_their_damages(trained, tmp_path):
    config = load_saved(trained)
    best = load_trained(trained, config, "best")
    (name,) = [path.name for path in (trained / "checkpoints").iterdir() if path.is_dir()]
    assert load_trained(trained, config, name).origin["kind"] == "ema", "any but `best`: the average where there is one"
    named = load_trained(trained, config, name, best.origin["kind"])
    assert named.origin["sha256"] == best.origin["sha256"]
    assert named.preprocessing == best.preprocessing
    assert all(torch.equal(*pair) for pair in zip(named.module.parameters(), best.module.parameters(), strict=True))
    copy = shutil.copytree(trained, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=f"has no checkpoint '9-9'; whole are {name}"):
        load_trained(copy, config, "9-9")
    file = copy / "checkpoints" / name / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_trained(copy, config, "last")


def test_a_model_folder_of_triton_is_published_whole(trained, tmp_path):
    output = tmp_path / "birds"
    assert run([f"run={trained}", "format=triton", f"output={output}"]) == 0
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert files == {"config.pbtxt", "labels.txt", "1/model.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == {"birds", "birds.json"}
    model = runner.load_model(trained)
    assert (output / "labels.txt").read_text().splitlines() == list(model.classes)
    images = torch.rand(3, 3, 32, 32)
    with torch.inference_mode():
        expected = model.module(images)
    torch.testing.assert_close(
        open_exported("onnx", output / "1" / "model.onnx")(images), expected, atol=1e-4, rtol=1e-3
    )
    described = json.loads((tmp_path / "birds.json").read_text())
    assert (described["file"], described["format"]) == ("birds/1/model.onnx", "triton")
    assert described["sha256"] == sha256_of(output / "1" / "model.onnx")
    with pytest.raises(OutputError):
        run([f"run={trained}", "format=triton", f"output={output}"])
