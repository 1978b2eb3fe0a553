"""Tells whether a data set is still the one that a run was started with, without opening an image."""

from __future__ import annotations

import hashlib

from runner.data.source import FolderSource, ImageSource, Subset
from runner.data.splits import Splits


def fingerprint(splits: Splits) -> str:
    """SHA-256 over class names, and over name and label of each training and validation image, in their order.

    Where images have no names, as in memory, their number and labels stand for them. The folder itself does not count:
    a data set may be moved.
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
