import errno
import json
import os
import random
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from runner.base.errors import CheckpointError, OutputError
from runner.run.checkpoint import CheckpointStore, check_written, checkpoint_name, verify

TENSORS = {"model": {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}, "optimizer": {}}


def test_names_sort_in_time():
    assert sorted([checkpoint_name(10, 900), checkpoint_name(9, 810)]) == ["0009-00000810", "0010-00000900"]


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    strided = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    store.save("0001-00000010", {**TENSORS, "ema": {"w": strided}}, {"step": 10, "loss": 0.1 + 0.2})
    loaded = store.load("0001-00000010")
    assert loaded.state == {"step": 10, "loss": 0.1 + 0.2}
    assert torch.equal(loaded.tensors["model"]["weight"], TENSORS["model"]["weight"])
    assert torch.equal(loaded.tensors["ema"]["w"], strided)
    assert loaded.tensors["optimizer"] == {}
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "0001-00000010").iterdir()) == [
        "ema.safetensors",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_who_may_read_the_folder_may_read_the_weights(tmp_path, umask):
    before = os.umask(umask)
    try:
        CheckpointStore(tmp_path / "checkpoints", keep=2).save("0001-00000010", TENSORS, {"step": 10})
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "checkpoints/0001-00000010").iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_the_same_tensors_are_the_same_bytes(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", TENSORS, {})
    store.save("0002-00000002", TENSORS, {})
    first, second = (tmp_path / name / "model.safetensors" for name in store.names())
    assert first.read_bytes() == second.read_bytes()


def test_rolling_back_renames_later_checkpoints_and_keeps_other_files(tmp_path):
    store = CheckpointStore(tmp_path, keep=9)
    names = [checkpoint_name(9999, 5), checkpoint_name(10000, 6), checkpoint_name(10001, 7)]
    for name in names:
        store.save(name, TENSORS, {})
        store.point("last", name)
    store.point("best", names[2])
    (tmp_path / "my_backup").mkdir()
    (tmp_path / ".0001-1.tmp").mkdir()
    assert store.names() == names, "ten thousand comes after 9999"
    store.roll_back_to(store.load(names[1]), best=names[0])
    assert store.names() == names[:2]
    assert (store.pointed("last"), store.pointed("best")) == (names[1], names[0])
    left = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert left == ["10000", "9999", "best", "damaged", "last", "my_backup"]


def test_old_checkpoints_are_pruned_but_never_the_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in range(1, 6):
        name = checkpoint_name(step, step)
        store.save(name, TENSORS, {})
        store.point("last", name)
        if step == 2:
            store.point("best", name)
        store.prune()
    assert store.names() == [checkpoint_name(step, step) for step in (2, 4, 5)]
    assert store.pointed("best") == checkpoint_name(2, 2)
    assert store.pointed("last") == checkpoint_name(5, 5)


def test_a_checkpoint_that_cannot_be_deleted_yet_is_logged(tmp_path, monkeypatch, caplog):
    """As on NFS, where the folder of a file that somebody has open is not empty."""

    def not_empty(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    store = CheckpointStore(tmp_path, keep=1)
    store.save("0001-00000001", TENSORS, {})
    with monkeypatch.context() as patch:
        patch.setattr("os.rmdir", not_empty)
        store.save("0001-00000001", TENSORS, {})
        store.save("0002-00000002", TENSORS, {})
        store.prune()
    assert store.names() == ["0002-00000002"]
    store.load("0002-00000002")
    left = {str(path) for path in tmp_path.glob(".*.tmp")}
    assert len(left) > 1
    said = [record.getMessage().partition(" can't be deleted yet")[0] for record in caplog.records]
    assert sorted(said) == sorted(left), "each once"
    store.prune()
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.parametrize("call", ["save_file", "fsync", "replace", "write_manifest"])
def test_a_save_that_fails_keeps_the_earlier_ones(tmp_path, monkeypatch, call):
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", TENSORS, {})

    def full(*_: object) -> None:
        if call == "save_file":
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    targets = {
        "save_file": "safetensors.torch.save_file",
        "fsync": "os.fsync",
        "replace": "pathlib.Path.replace",
        "write_manifest": "runner.run.checkpoint.write_manifest",
    }
    with monkeypatch.context() as patch:
        patch.setattr(targets[call], full)
        with pytest.raises(OutputError, match="the disk is full"):
            store.save("0002-00000002", TENSORS, {})
    assert store.names() == ["0001-00000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["0001-00000001"]
    store.load("0001-00000001")


def test_every_damage_is_noticed(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", TENSORS, {"step": 1})
    folder = tmp_path / "0001-00000001"
    randomness = random.Random(1)
    for _ in range(200):
        file = randomness.choice([path for path in sorted(folder.iterdir()) if path.name != "manifest.json"])
        good = file.read_bytes()
        position = randomness.randrange(len(good))
        bad = good[:position] if randomness.random() < 0.5 else flip(good, position, randomness)
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"damaged"):
            store.load("0001-00000001")
        file.write_bytes(good)
    verify(folder)


def test_bytes_on_the_disk_that_differ_from_memory_are_noticed(tmp_path):
    tensors = {
        "model": {
            "weight": torch.tensor([1.0, float("nan"), -0.0]),
            "count": torch.tensor(7),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "mask": torch.tensor([True, False]),
        },
        "optimizer": {},
    }
    CheckpointStore(tmp_path, keep=2).save("0001-00000001", tensors, {})
    folder = tmp_path / "0001-00000001"
    check_written(folder, tensors, known_as=folder)
    for key, other in {
        "weight": torch.tensor([1.0, float("nan"), 0.0]),  # another bit, though equal as a number
        "count": torch.tensor(8),
        "half": torch.ones(3, dtype=torch.float16),
        "mask": torch.tensor([True, True]),
        "more": torch.tensor(1),
    }.items():
        with pytest.raises(CheckpointError, match=r"known/model\.safetensors: the disk holds other bytes"):
            check_written(folder, {**tensors, "model": {**tensors["model"], key: other}}, known_as=Path("known"))
    (folder / "optimizer.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"known/optimizer\.safetensors can't be read"):
        check_written(folder, tensors, known_as=Path("known"))


def test_a_checkpoint_that_the_disk_has_changed_replaces_no_other(tmp_path, monkeypatch):
    """Its manifest would be made from the wrong bytes, and a resume would take it."""
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", {"model": {"weight": torch.zeros(4)}}, {})

    def save_wrongly(tensors: dict[str, torch.Tensor], file: Path) -> None:
        save_file({key: value + 1 for key, value in tensors.items()}, file)

    monkeypatch.setattr("safetensors.torch.save_file", save_wrongly)
    for name in ("0001-00000001", "0002-00000002"):
        with pytest.raises(CheckpointError, match=rf"{name}/model\.safetensors: the disk holds other bytes"):
            store.save(name, {"model": {"weight": torch.ones(4)}}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["0001-00000001"]
    assert torch.equal(store.load("0001-00000001").tensors["model"]["weight"], torch.zeros(4))


def flip(content: bytes, position: int, randomness: random.Random) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << randomness.randrange(8))]) + content[position + 1 :]


@pytest.mark.parametrize("missing", ["model.safetensors", "manifest.json"])
def test_a_missing_file_is_named(tmp_path, missing):
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", TENSORS, {})
    (tmp_path / "0001-00000001" / missing).unlink()
    with pytest.raises(CheckpointError, match=missing):
        store.load("0001-00000001")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"model.safetensors": 3}', json.dumps({"../x": {"sha256": "", "bytes": 0}})]
)
def test_a_damaged_manifest_is_a_checkpoint_error(tmp_path: Path, content):
    store = CheckpointStore(tmp_path, keep=2)
    store.save("0001-00000001", TENSORS, {})
    (tmp_path / "0001-00000001" / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError):
        store.load("0001-00000001")
