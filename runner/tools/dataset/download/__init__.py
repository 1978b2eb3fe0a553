"""Downloads an archive from a typed address: size limit, resume after an interruption, SHA-256 check.

No library does all of it: pooch checks the hash but restarts, fsspec reads ranges but needs an HTTP client of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError, OutputError
from runner.base.files import locked, named_write_errors, sha256_of
from runner.base.stop import StopRequest
from runner.base.untrusted import printable
from runner.config.schema.calls.of_datasets import DatasetImportCall
from runner.tools.dataset.download.address import Address, address_of
from runner.tools.dataset.download.partial_download import PartialDownload
from runner.tools.dataset.download.transfer import Transfer
from runner.tools.dataset.sources import detect_format


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """A complete archive."""

    file: Path
    address: str
    """As it may be shown and kept."""
    sha256: str


@contextmanager
def downloaded(call: DatasetImportCall, output: Path, stop: StopRequest) -> Iterator[Downloaded]:
    """Download `call.input` into a hidden folder beside the output, which is removed when the block ends well.

    Otherwise it stays, and the next call with the same address or SHA-256 resumes or uses it.

    Raises:
        DownloadError: the server or the network fails, or the file is larger than the limit.
        InvalidDatasetError: the file has another SHA-256, or is no archive; it is deleted.
        OutputError: it can't be written, or another process downloads it.
        StoppedOnRequest: a signal asked for it.
    """
    address = address_of(call.input)
    partial = PartialDownload.beside(output, call.sha256 or address.url)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(partial.lock))
        except BlockingIOError as error:
            raise OutputError(f"output = {output}: another process downloads its images right now") from error
        partial.load()
        try:
            Transfer(call, address, partial, output, stop).run()
            sha256 = _checked(call, address, partial)
        except BaseException:
            if partial.is_empty():
                partial.remove()
            raise
        try:
            yield Downloaded(file=partial.file, address=address.shown, sha256=sha256)
        except BaseException:
            LOGGER.warning(
                "the download is kept in %s and used by the next call; delete it if there is none", partial.file
            )
            raise
        partial.remove()


def _checked(call: DatasetImportCall, address: Address, partial: PartialDownload) -> str:
    """The SHA-256 of the file; a wrong file is deleted."""
    with named_write_errors(partial.file):
        sha256 = sha256_of(partial.file)
    if call.sha256 is not None and sha256 != call.sha256:
        partial.clear()
        raise InvalidDatasetError(
            f"input = {address.shown}: its SHA-256 is {sha256}, not {call.sha256} as sha256 says; it was deleted. "
            "Is sha256 copied completely, or has the publisher replaced the file?"
        )
    try:
        kind = call.format if call.format != "auto" else detect_format(partial.file)
    except InvalidDatasetError as error:
        content_type = partial.state.content_type if partial.state is not None else None
        partial.clear()
        kind_text = f"the server says {printable(content_type)}" if content_type else "the server names no type"
        raise InvalidDatasetError(
            f"input = {address.shown}: the file is no zip or tar archive ({kind_text}); it was deleted. Is this the "
            "address of a page with a link to the archive? Lists and COCO files are read from local paths only"
        ) from error
    assert kind in ("zip", "tar"), "the schema allows no other format, and the file name tells none"
    return sha256
