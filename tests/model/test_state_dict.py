from __future__ import annotations

import argparse
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.model import with_versions
from runner.model.state_dict import read_weights_file


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.rand(2, 3), "layer.bias": torch.rand(2)}


def write(path: Path, content: object, **options: object) -> Path:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)
    else:
        torch.save(content, path, **options)
    return path


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.pt"])
def test_tensors_are_read_as_they_were_written(name, tensors, tmp_path, same_values):
    read = read_weights_file(write(tmp_path / name, tensors))
    assert same_values(read.tensors, tensors)
    assert read.versions == {}


def test_files_older_than_torch_1_6(tensors, tmp_path, same_values):
    path = write(tmp_path / "old.pth", tensors, _use_new_zipfile_serialization=False)
    assert same_values(read_weights_file(path).tensors, tensors)
    assert read_weights_file(path, shapes_only=True).tensors["layer.weight"].is_meta


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_shapes_only(name, tensors, tmp_path):
    read = read_weights_file(write(tmp_path / name, tensors), shapes_only=True)
    assert {key: (value.device.type, tuple(value.shape)) for key, value in read.tensors.items()} == {
        "layer.weight": ("meta", (2, 3)),
        "layer.bias": ("meta", (2,)),
    }


def test_a_path_may_begin_with_a_tilde(tensors, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "w.pth", tensors)
    assert len(read_weights_file(Path("~/w.pth")).tensors) == 2


def test_the_home_folder_of_an_unknown_user_is_refused():
    with pytest.raises(InvalidModelError, match=r"'~nobody_of_this_name/w\.pth': Could not determine home"):
        read_weights_file(Path("~nobody_of_this_name/w.pth"))


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_checkpoints_of_training_scripts(key, tensors, tmp_path, same_values):
    checkpoint = {
        key: tensors,
        "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(1)}}},
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1),
    }
    assert same_values(read_weights_file(write(tmp_path / "checkpoint.pth", checkpoint)).tensors, tensors)


def test_versions_of_the_modules_are_kept(tmp_path):
    path = write(tmp_path / "w.pth", nn.Sequential(nn.BatchNorm2d(3)).state_dict())
    assert read_weights_file(path).versions == {"": {"version": 1}, "0": {"version": 2}}


class Bomb:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("shapes_only", [True, False])
def test_code_in_a_file_is_refused_and_not_run(new_format, shapes_only, tensors, tmp_path):
    victim = tmp_path / "victim"
    content = {**tensors, "bomb": Bomb(victim)}
    path = write(tmp_path / "w.pth", content, _use_new_zipfile_serialization=new_format)
    with pytest.raises(InvalidModelError, match=r"w\.pth' can't be read: beside .* it holds (posix|nt)\.mkdir, "):
        read_weights_file(path, shapes_only=shapes_only)
    assert not victim.exists()


def test_code_in_a_plain_pickle_is_refused_and_not_run(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "w.pth"
    path.write_bytes(pickle.dumps(Bomb(victim), protocol=2))
    with pytest.raises(InvalidModelError, match="can't be read"):
        read_weights_file(path)
    assert not victim.exists()


def test_the_reason_is_short(tmp_path):
    path = tmp_path / "w.pth"
    path.write_bytes(b"\x80\x02garbage" * 100)
    with pytest.raises(InvalidModelError, match=r"no weights file \(UnpicklingError: Unsupported operand 103\)$"):
        read_weights_file(path)


def test_a_whole_module_is_refused(tmp_path):
    with pytest.raises(InvalidModelError, match=r"it holds torch\.nn\.modules\..*save model.state_dict\(\) alone"):
        read_weights_file(write(tmp_path / "model.pth", nn.Linear(2, 2)))


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n<!DOCTYPE html><html><body>Not found</body></html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a Git LFS pointer"),
        (b"these are my weights", "is no file that torch.save wrote|is damaged or no weights file"),
        (b"\x80\x02garbage" * 100, "is damaged or no weights file"),
        (b"PK\x03\x04 no zip", "is damaged or no weights file"),
    ],
)
@pytest.mark.parametrize("shapes_only", [True, False])
def test_anything_but_a_weights_file_is_refused(suffix, content, message, shapes_only, tmp_path):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=message) as caught:
        read_weights_file(path, shapes_only=shapes_only)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_the_content_of_another_file_is_not_shown(suffix, tmp_path):
    (tmp_path / "secret.txt").write_text("hunter2\n")
    (tmp_path / f"w{suffix}").symlink_to("secret.txt")
    with pytest.raises(InvalidModelError) as caught:
        read_weights_file(tmp_path / f"w{suffix}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("shapes_only", [True, False])
def test_truncated_files(name, kept, shapes_only, tmp_path):
    path = write(tmp_path / name, {"weight": torch.rand(64, 64)})
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(InvalidModelError, match=rf"{name}' can't be read: it is damaged"):
        read_weights_file(path, shapes_only=shapes_only)


def test_truncated_files_older_than_torch_1_6(tmp_path):
    path = write(tmp_path / "w.pth", {"weight": torch.rand(64, 64)}, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InvalidModelError, match="can't be read: it is damaged"):
        read_weights_file(path)


def test_a_zip_file_of_something_else(tmp_path):
    path = tmp_path / "w.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "hello")
    with pytest.raises(InvalidModelError, match="can't be read: it is damaged or no weights file"):
        read_weights_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3, "lr": 0.1}, "holds no state dict, but the keys epoch, lr;"),
        ({}, "holds no state dict, but the keys ;"),
        (torch.zeros(3), "holds no state dict, but no mapping"),
        ([1, 2], "holds no state dict, but no mapping"),
    ],
)
def test_files_without_a_state_dict(content, message, tmp_path):
    with pytest.raises(InvalidModelError, match=message):
        read_weights_file(write(tmp_path / "w.pth", content))


def test_a_missing_file_is_named_with_its_folder(tmp_path):
    with pytest.raises(InvalidModelError, match=rf"gone\.pth': there is no such file \(looked in {tmp_path}\)"):
        read_weights_file(tmp_path / "gone.pth")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(InvalidModelError, match=r"can't be read: .*folder\.pth is a folder"):
        read_weights_file(tmp_path / "folder.pth")


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(InvalidModelError, match=r"ends in \.safetensors, \.pth, \.pt"):
        read_weights_file(tmp_path / "weights.bin")


def test_tensors_without_versions_load_into_modules_that_ask_for_them(tmp_path, same_values):
    module = models.mnasnet0_5(num_classes=3)
    path = write(tmp_path / "w.safetensors", module.state_dict())
    other = models.mnasnet0_5(num_classes=3)
    with pytest.raises(ValueError, match="version"):
        other.load_state_dict(safetensors.torch.load_file(path))
    other.load_state_dict(with_versions(safetensors.torch.load_file(path), other))
    assert same_values(module, other)


def test_a_state_dict_that_holds_itself_is_refused(tmp_path):
    content: dict[str, object] = {}
    content["state_dict"] = content
    with pytest.raises(InvalidModelError, match="holds no state dict"):
        read_weights_file(write(tmp_path / "w.pth", content))


def test_a_fifo_keeps_nobody_waiting(tmp_path):
    for suffix in (".pth", ".safetensors"):
        os.mkfifo(tmp_path / f"w{suffix}")
        with pytest.raises(InvalidModelError, match="no regular file"):
            read_weights_file(tmp_path / f"w{suffix}")


def test_a_device_is_no_file(tmp_path):
    (tmp_path / "w.pt").symlink_to("/dev/zero")
    with pytest.raises(InvalidModelError, match="no regular file"):
        read_weights_file(tmp_path / "w.pt")


def test_compressed_zip_files_are_refused(tmp_path):
    """A gigabyte of zeros is a megabyte when it is compressed."""
    write(tmp_path / "plain.pt", {"x": torch.zeros(1_000_000)})
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "w.pt", "w") as packed:
        for part in plain.infolist():
            packed.writestr(part.filename, plain.read(part), zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidModelError, match="its parts are compressed"):
        read_weights_file(tmp_path / "w.pt")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (10**9, 10**9)),
        lambda: torch.zeros(3, dtype=torch.complex64),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8),
    ],
    ids=["sparse", "sparse and huge", "complex", "quantized"],
)
@pytest.mark.parametrize("shapes_only", [True, False])
def test_only_plain_tensors_are_taken(tmp_path, make, shapes_only):
    path = write(tmp_path / "w.pth", {"fc.weight": make()})
    with pytest.raises(InvalidModelError, match=r"fc\.weight is no plain tensor|can't be read"):
        read_weights_file(path, shapes_only=shapes_only)


@pytest.mark.parametrize("key", [3, (1, 2), None])
def test_names_of_tensors_are_text(tmp_path, key):
    with pytest.raises(InvalidModelError, match="which is no text"):
        read_weights_file(write(tmp_path / "w.pth", {key: torch.zeros(1)}))


def test_numbers_of_another_kind_do_not_fit(tmp_path):
    from torchvision import models

    from runner.config.schema.model import TorchvisionConfig
    from runner.model.build import build_model

    state = models.shufflenet_v2_x0_5(num_classes=3).state_dict()
    path = write(tmp_path / "w.pth", {**state, "fc.bias": torch.zeros(3, dtype=torch.int64)})
    config = TorchvisionConfig(
        family="torchvision",
        name="shufflenet_v2_x0_5",
        weights=str(path),
        average_flips=False,
        checkpoint_activations=False,
    )
    with pytest.raises(InvalidModelError, match=r"fc\.bias is int64, must be float32"):
        build_model(config, 3)
