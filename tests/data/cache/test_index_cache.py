"""An index that is kept is used only as long as a new scan would find the same."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.cache import index_cache
from runner.data.cache.index_cache import MappedIndex, load_or_scan
from runner.data.fingerprint import fingerprint
from runner.data.sources.index import FolderIndex, scan_class_folders
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep small folders, and those of this moment: the clock is an hour ahead."""
    monkeypatch.setattr(index_cache, "MIN_IMAGES", 1)
    now_ns = time.time_ns
    monkeypatch.setattr(index_cache.time, "time_ns", lambda: now_ns() + 3600 * 10**9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "train"
    for name in ("ant/1.jpg", "ant/deep/2.jpg", "bee/ü\n.png", "bee/notes.txt", "cat/3.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "empty").mkdir()
    return root


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FolderIndex, bool]]:
    """A function (folder) → (index, whether it was scanned)."""
    scans = []
    scan = index_cache.scan
    monkeypatch.setattr(index_cache, "scan", lambda *given, **named: scans.append(1) or scan(*given, **named))

    def run(root: Path) -> tuple[FolderIndex, bool]:
        scans.clear()
        index, note = load_or_scan(str(root), key="data.train", cache=tmp_path / "cache")
        assert note is None
        assert same(index, scan_class_folders(str(root), key="data.train"))
        return index, bool(scans)

    return run


def same(one: FolderIndex, other: FolderIndex) -> bool:
    plain = [(index.folder, index.classes, bytes(index.paths), index.left_out) for index in (one, other)]
    return (
        plain[0] == plain[1]
        and np.array_equal(one.labels, other.labels)
        and np.array_equal(one.offsets, other.offsets)
        and one.labels.dtype == other.labels.dtype == np.int64
    )


def test_the_second_start_scans_nothing(folder, load):
    assert load(folder)[1]
    index, was_scanned = load(folder)
    assert not was_scanned
    assert isinstance(index, MappedIndex)
    assert [index.path(image) for image in range(4)][2] == f"{folder}/bee/ü\n.png"
    assert index.empty_classes() == ("empty",)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "ant/4.jpg").touch(),
        lambda root: (root / "ant/deep/4.jpg").touch(),
        lambda root: (root / "ant/1.jpg").unlink(),
        lambda root: (root / "ant/1.jpg").rename(root / "ant/9.jpg"),
        lambda root: (root / "ant/1.jpg").rename(root / "bee/1.jpg"),
        lambda root: (root / "dog").mkdir(),
        lambda root: (root / "empty").rmdir(),
        lambda root: (root / "empty/5.jpg").touch(),
        lambda root: (root / "cat").rename(root / "puma"),
        lambda root: (root / "bee/more.txt").touch(),
        lambda root: (root / "loose.txt").touch(),
    ],
)
def test_every_change_of_names_is_seen(folder, load, change):
    load(folder)
    change(folder)
    assert load(folder)[1]
    assert not load(folder)[1]


def test_a_change_is_seen_although_the_folder_has_its_old_time_again(folder, load):
    before = (folder / "ant").stat()
    load(folder)
    (folder / "ant/4.jpg").touch()
    # As rsync and tar leave it.
    os.utime(folder / "ant", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(folder)[1]


def test_a_folder_in_place_of_another_is_seen(folder, load, tmp_path):
    load(folder)
    folder.rename(tmp_path / "old")
    for name in ("ant/x.jpg", "bee/y.jpg"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    assert load(folder)[1]


def test_a_link_to_another_folder_is_followed_to_where_it_leads_now(folder, load, tmp_path):
    for name in ("one/1.jpg", "two/1.jpg", "two/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (folder / "linked").symlink_to(tmp_path / "one")
    load(folder)
    assert not load(folder)[1]
    (tmp_path / "one/3.jpg").touch()
    assert load(folder)[1]
    (folder / "linked").unlink()
    (folder / "linked").symlink_to(tmp_path / "two")
    assert load(folder)[1]


def test_nothing_is_kept_while_a_link_is_broken(folder, load, tmp_path):
    (folder / "ant/linked.jpg").symlink_to(tmp_path / "later.jpg")
    assert load(folder)[1]
    (tmp_path / "later.jpg").touch()
    index, was_scanned = load(folder)
    assert was_scanned
    assert len(index) == 5


def test_nothing_is_kept_of_a_folder_that_has_just_changed(folder, load, monkeypatch):
    newest = max(path.stat().st_ctime_ns for path in [folder, *folder.rglob("*")])
    monkeypatch.setattr(index_cache.time, "time_ns", lambda: newest + 2 * 10**9)
    assert load(folder)[1]
    assert load(folder)[1]
    monkeypatch.setattr(index_cache.time, "time_ns", lambda: newest + 2 * 10**9 + 1)
    assert load(folder)[1]
    assert not load(folder)[1]


def test_small_folders_are_listed_each_time(folder, load, monkeypatch, tmp_path):
    monkeypatch.setattr(index_cache, "MIN_IMAGES", 5)
    load(folder)
    assert load(folder)[1]
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("place", [0, 20, 60, 200, -1])
def test_a_damaged_file_is_made_anew(folder, load, tmp_path, place):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    # A new file in its place, as no program of ours writes into one that others have mapped.
    file.unlink()
    file.write_bytes(content)
    assert load(folder)[1]
    assert not load(folder)[1]


@pytest.mark.parametrize("size", [0, 1, 15, 23, 100, -1])
def test_a_truncated_file_is_made_anew(folder, load, tmp_path, size):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()[:size]
    file.unlink()
    file.write_bytes(content)
    assert load(folder)[1]
    assert not load(folder)[1]


def test_any_damaged_byte_is_noticed(folder, load, tmp_path):
    load(folder)
    index, _ = load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    damaged = tmp_path / "damaged.index"
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1
        damaged.unlink(missing_ok=True)
        damaged.write_bytes(content)
        read = index_cache._read_valid(damaged, str(folder))
        assert read is None or same(read, index)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, about: header.update(labels={"data_offsets": [0, 1 << 70]}),
        lambda header, about: header.update(labels={"data_offsets": [-8, None]}),
        lambda header, about: header.update(paths={"data_offsets": [0, 10, 2]}),
        lambda header, about: header.update(paths={"data_offsets": "ab"}),
        lambda header, about: header.update(offsets=7),
        lambda header, about: header.update(stamps={"data_offsets": [0, 0]}),
        lambda header, about: header.pop("directories"),
        lambda header, about: about.update(classes=["ant"]),
        lambda header, about: about.update(classes=5),
        lambda header, about: about.update(left_out=[["hidden", 1]]),
        lambda header, about: about.update(digest=None),
        lambda header, about: about.clear(),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_damaged(folder, load, tmp_path, change):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    about = json.loads(header["__metadata__"]["about"])
    change(header, about)
    header["__metadata__"]["about"] = json.dumps(about)
    changed = json.dumps(header).encode()
    file.unlink()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[start:])
    assert load(folder)[1]
    assert not load(folder)[1]


def test_labels_beyond_the_classes_are_not_believed_whatever_the_digest_says(folder, load, tmp_path):
    load(folder)
    index, _ = load(folder)
    wrong = replace(index, labels=index.labels + 9)
    index_cache._write(index.file, replace(index_cache.scan(str(folder), key="data.train"), index=wrong))
    assert load(folder)[1]


@pytest.mark.parametrize("content", [b"runner index 1\n" + bytes(100), b'\x0c\0\0\0\0\0\0\0{"a": [[[[[', b"\x80\x04."])
def test_a_file_of_another_format_is_replaced(folder, load, tmp_path, content):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    file.unlink()
    file.write_bytes(content)
    assert load(folder)[1]
    assert not load(folder)[1]


def test_safetensors_reads_the_file(folder, load, tmp_path):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    kept = load_file(file)
    assert kept["labels"].tolist() == [0, 0, 1, 2]
    assert kept["paths"].tobytes().startswith(b"ant/1.jpg")


def test_the_file_of_another_folder_is_not_taken(folder, load, tmp_path):
    load(folder)
    (file,) = (tmp_path / "cache").iterdir()
    other = tmp_path / "other"
    (other / "ant").mkdir(parents=True)
    (other / "ant/1.jpg").touch()
    file.rename(tmp_path / "cache" / f"{index_cache._name(str(other))}.index")
    assert load(other)[1]


def test_a_cache_folder_that_can_not_be_made_is_said_once(folder, tmp_path):
    (tmp_path / "file").touch()
    index, note = load_or_scan(str(folder), key="data.train", cache=tmp_path / "file" / "cache")
    assert same(index, scan_class_folders(str(folder), key="data.train"))
    assert note is not None
    assert note.startswith("data.train: the list of files can't be cached and is made anew at each start")


def test_mistakes_are_those_of_a_scan(tmp_path):
    with pytest.raises(InvalidDatasetError, match="there is no such folder"):
        load_or_scan(str(tmp_path / "none"), key="data.train", cache=tmp_path / "cache")


def test_processes_that_start_together_all_get_it(folder, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def start() -> None:
        index, _ = load_or_scan(str(folder), key="data.train", cache=tmp_path / "cache")
        queue.put((type(index).__name__, len(index)))

    processes = [context.Process(target=start) for _ in range(4)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=60) for _ in processes] == [("MappedIndex", 4)] * 4
    for process in processes:
        process.join(60)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".index"]


def test_other_processes_map_the_same_file_instead_of_a_copy(folder, load, tmp_path):
    load(folder)
    index, _ = load(folder)
    pickled = pickle.dumps(index)
    assert b"deep" not in pickled, "only the name of the file travels"
    again = pickle.loads(pickled)
    assert same(again, index)
    (file,) = (tmp_path / "cache").iterdir()
    file.unlink()
    assert index.path(0) == f"{folder}/ant/1.jpg", "who has it mapped keeps it"
    assert same(pickle.loads(pickled), index), "who has not finds the same"
    (folder / "ant/1.jpg").unlink()
    with pytest.raises(InvalidDatasetError, match="was changed while processes were started; start again"):
        pickle.loads(pickled)


def test_splits_are_the_same_with_and_without(tmp_path, write_images, data_config, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path / "train", {"ant": 5, "bee": 4})
    write_images(tmp_path / "val", {"bee": 2})

    def opened(index_cache: str):
        config: DataConfig = data_config("folder", root=tmp_path, index_cache=index_cache)
        return open_splits(resolve_paths(config), 1)

    plain = opened("none")
    for _ in range(2):
        kept = opened("auto")
        assert isinstance(kept.train.index, MappedIndex)
        assert fingerprint(kept) == fingerprint(plain)
        assert kept.val.labels.tolist() == plain.val.labels.tolist() == [1, 1]
        assert kept.notes == plain.notes
        again = pickle.loads(pickle.dumps(kept))
        assert again.train.labels is again.train.index.labels
        assert (again.train.open(3).pixels() == plain.train.open(3).pixels()).all()
        assert again.val.labels.tolist() == [1, 1]


def test_an_index_unused_for_90_days_is_removed_when_another_is_written(folder, load, tmp_path):
    day = 24 * 3600
    cache = tmp_path / "cache"
    load(folder)
    (used,) = cache.glob("*.index")
    old, recent, others = cache / "old.index", cache / "recent.index", cache / "notes.txt"
    for file, days in ((old, 91), (recent, 89), (others, 1000), (used, 91)):
        file.touch()
        os.utime(file, (time.time() - days * day,) * 2)
    load(folder)  # notes its use
    assert old.exists(), "nothing was kept, so nothing is removed"
    other = tmp_path / "other"
    folder.rename(other)
    assert load(other)[1]
    assert not old.exists()
    assert all(file.exists() for file in (used, recent, others))


def test_a_cache_that_cannot_be_cleaned_is_no_reason_to_fail(folder, load, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    old = tmp_path / "cache" / "old.index"
    old.touch()
    os.utime(old, (0, 0))
    unlink = Path.unlink

    def refuse(self, *given, **named):
        if self == old:
            raise PermissionError(13, "Permission denied")
        unlink(self, *given, **named)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert load(folder)[1]
    assert not load(folder)[1]
    assert old.exists()


def test_a_lock_that_is_held_for_too_long_is_said_and_not_waited_for_without_end(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(index_cache, "_MOST_SECONDS_TO_WAIT", 0.1)
    with (cache / f"{index_cache._name(str(folder))}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        index, note = load_or_scan(str(folder), key="data.train", cache=cache)
    assert same(index, scan_class_folders(str(folder), key="data.train"))
    assert note is not None
    assert "could not take turns" in note
    assert ".lock" in note


def test_a_lock_that_cannot_be_had_is_said_and_the_index_is_as_right(folder, tmp_path):
    cache = tmp_path / "cache"
    (cache / f"{index_cache._name(str(folder))}.lock").mkdir(parents=True)
    index, note = load_or_scan(str(folder), key="data.train", cache=cache)
    assert same(index, scan_class_folders(str(folder), key="data.train"))
    assert note is not None
    assert "could not take turns: " in note
    assert "this is a folder, not a file" in note


def test_a_file_system_without_locks_is_said_and_the_index_is_as_right(folder, tmp_path, monkeypatch):
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", missing)
    index, note = load_or_scan(str(folder), key="data.train", cache=tmp_path / "cache")
    assert same(index, scan_class_folders(str(folder), key="data.train"))
    assert note is not None
    assert "on a file system without locks" in note
    kept, note = load_or_scan(str(folder), key="data.train", cache=tmp_path / "cache")
    assert (type(kept), note) == (MappedIndex, None)


def test_an_index_written_meanwhile_is_read_without_the_lock(folder, tmp_path, monkeypatch):
    """Hundreds of processes wait for the one that scans: they must not look one by one."""
    cache = tmp_path / "cache"
    is_held, looked = False, []
    turn, read = index_cache._one_process_at_a_time, index_cache._read_valid

    @contextmanager
    def turn_after_another(file: Path) -> Iterator[str | None]:
        nonlocal is_held
        monkeypatch.setattr(index_cache, "_one_process_at_a_time", turn)
        load_or_scan(str(folder), key="data.train", cache=cache)
        monkeypatch.setattr(index_cache, "scan", None)
        looked.clear()
        with turn(file) as hindrance:
            is_held = True
            yield hindrance
        is_held = False

    def read_valid(*given: Any) -> Any:
        looked.append(is_held)
        return read(*given)

    monkeypatch.setattr(index_cache, "_one_process_at_a_time", turn_after_another)
    monkeypatch.setattr(index_cache, "_read_valid", read_valid)
    index, note = load_or_scan(str(folder), key="data.train", cache=cache)
    assert (type(index), note) == (MappedIndex, None)
    assert looked == [False]
