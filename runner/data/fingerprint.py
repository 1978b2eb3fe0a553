"""Fingerprints of a data set, by which a resumed run notices changes; image files are hashed, not decoded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from runner.base.errors import DeviceError
from runner.base.keyed_random import random_words
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError, open_regular
from runner.config.schema.data import FingerprintExtent
from runner.data.images.decode import FAULTS_OF_THE_MACHINE
from runner.data.source import FolderSource, ImageSource, Subset
from runner.data.sources.index import printable_path
from runner.data.splits import Splits

Result = TypeVar("Result")
Content = dict[str, dict[str, int | str]]
"""By split (train, val, test): `count`, and SHA-256 of the images' `names`, `sizes`, of the content of `num_sampled` of
them (`sampled`) and of all (`full`), as far as data.fingerprint asks for them."""

# All files of a data set up to this size are read.
_NUM_SAMPLED = 1024
_MOST_BYTES_OF_A_SAMPLE = 1 << 20
# Images without files are in memory, or must be decoded.
_NUM_SAMPLED_IN_MEMORY = 256
_NUM_SAMPLED_DECODED = 32
# Threads overlap the latencies of a network file system.
_NUM_THREADS = 16
_STATS_PER_TASK = 1024
_READS_PER_TASK = 16
_GONE = -1
# Compared in this order; the first that differs is reported.
_KINDS = {
    "names": "its images have other names, labels or another order",
    "sizes": "files of its images have other sizes",
    "sampled": "files of its images hold other bytes",
    "full": "files of its images hold other bytes",
}


def fingerprint(splits: Splits) -> str:
    """SHA-256 over class names, and over the name and label of each training and validation image, in order.

    Of images without names (in memory) only number and labels are hashed. The path of the folder is not hashed, so a
    data set may be moved.
    """
    digest = hashlib.sha256()
    for name in splits.classes:
        digest.update(name.encode(errors="surrogateescape") + b"\0")
    for source in (splits.train, splits.val):
        digest.update(source.labels.tobytes())
        _add_names(digest, source)
    return digest.hexdigest()


def _add_names(digest: hashlib._Hash, source: ImageSource) -> None:
    match source:
        case FolderSource():
            digest.update(source.index.paths)
            digest.update(source.index.offsets.tobytes())
        case Subset():
            digest.update(source.ids.tobytes())
            _add_names(digest, source.source)
        case _:
            digest.update(type(source).__name__.encode())


def content_of(
    splits: Splits,
    extent: FingerprintExtent,
    *,
    names: Sequence[str] = ("train", "val", "test"),
    heartbeat: Callable[[], object] = lambda: None,
) -> Content:
    """Digests of the names, sizes and content of the images of each split.

    Takes a `stat` per file: 6 s for the 1.28 million of ImageNet on a local disk (4.5 µs each), more on a file system
    that has not cached them. The sample of up to 1,024 files per split depends on the number of images only; up to
    1 MiB of each is read. A file that is missing or may not be read gets a digest of its own.

    Args:
        splits: the data set.
        extent: data.fingerprint: names only, a sample, or all files.
        names: of the splits.
        heartbeat: called now and then.

    Raises:
        DeviceError: a file can't be read because of a fault of the machine.
    """
    sources: dict[str, ImageSource | None] = {name: getattr(splits, name) for name in names}
    return {
        name: _content(source, splits.classes, extent, heartbeat)
        for name, source in sources.items()
        if source is not None
    }


def content_differences(before: object, now: Content, splits: Sequence[str]) -> list[str]:
    """Sentences on what has changed, as far as both contents have it.

    Args:
        before: the content that a run has recorded; anything else, as in older runs, counts as unchanged.
        now: the present content.
        splits: names of the splits to compare.
    """
    return [
        f"data.{name}: {said}"
        for name in splits
        if isinstance(before, Mapping) and isinstance(before.get(name), Mapping) and name in now
        for said in _difference(before[name], now[name])
    ]


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(before.get("count"), int) and before["count"] != now["count"]:
        yield f"it has {now['count']:,} images, and had {before['count']:,}"
        return
    for kind, said in _KINDS.items():
        if kind in before and kind in now and before[kind] != now[kind]:
            how_many = f" ({now['num_sampled']:,} of {now['count']:,} were compared)" if kind == "sampled" else ""
            yield said + how_many
            return


def _content(
    source: ImageSource, classes: Sequence[str], extent: FingerprintExtent, heartbeat: Callable[[], object]
) -> dict[str, int | str]:
    names = hashlib.sha256(b"\0".join(name.encode(errors="surrogateescape") for name in classes))
    names.update(source.labels.tobytes())
    _add_names(names, source)
    content: dict[str, int | str] = {"count": len(source), "names": names.hexdigest()}
    if extent == "names" or len(source) == 0:
        return content
    everything = np.arange(len(source))
    if source.file(0) is not None:
        found = _in_threads(partial(_size, source), everything, _STATS_PER_TASK, heartbeat)
        content["sizes"] = hashlib.sha256(np.fromiter(found, np.int64, len(source)).tobytes()).hexdigest()
        most = _NUM_SAMPLED
    else:
        most = _NUM_SAMPLED_IN_MEMORY if source.bytes_once_decoded(0) is None else _NUM_SAMPLED_DECODED
    sample = _sample(len(source), most)
    content["num_sampled"] = len(sample)
    heads = _in_threads(partial(_hash, source, most_bytes=_MOST_BYTES_OF_A_SAMPLE), sample, _READS_PER_TASK, heartbeat)
    content["sampled"] = _digest(heads)
    if extent == "full":
        content["full"] = _digest(_in_threads(partial(_hash, source), everything, _READS_PER_TASK, heartbeat))
    return content


def _sample(num_images: int, most: int) -> npt.NDArray[np.int64]:
    """Image numbers in ascending order, about `most` of them, as a function of `num_images` only."""
    if num_images <= most:
        return np.arange(num_images)
    return np.unique(random_words(most, "fingerprint", num_images) % np.uint64(num_images)).astype(np.int64)


def _in_threads(
    look: Callable[[int], Result], images: npt.NDArray[np.int64], per_task: int, heartbeat: Callable[[], object]
) -> Iterator[Result]:
    parts = [images[start : start + per_task].tolist() for start in range(0, len(images), per_task)]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        for found in threads.map(lambda part: [look(image) for image in part], parts):
            heartbeat()
            yield from found


def _size(source: ImageSource, image: int) -> int:
    path = source.file(image)
    assert path is not None, "a source has files or has none"
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a million of them
    except OSError as error:
        _raise_fault_of_the_machine(path, error)
        return _GONE


def _hash(source: ImageSource, image: int, most_bytes: int | None = None) -> bytes:
    path = source.file(image)
    if path is None:
        return hashlib.sha256(source.open(image).pixels().tobytes()).digest()
    try:
        with open_regular(path) as file:
            if most_bytes is not None:
                return hashlib.sha256(file.read(most_bytes)).digest()
            return hashlib.file_digest(file, "sha256").digest()
    except UntrustedFileError:
        return b""
    except OSError as error:
        _raise_fault_of_the_machine(path, error)
        return b""


def _raise_fault_of_the_machine(path: str, error: OSError) -> None:
    if error.errno in FAULTS_OF_THE_MACHINE:
        raise DeviceError(f"{printable_path(path)}: can't be read at this moment: {reason_of(error)}") from error


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(1, "big") + part)
    return digest.hexdigest()
