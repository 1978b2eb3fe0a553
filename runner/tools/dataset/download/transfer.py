"""Downloads a file within a size limit; after an interruption it resumes as long as each attempt gains bytes."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from runner.base.console import LOGGER, ProgressLine, progress_line
from runner.base.errors import DownloadError
from runner.base.files import named_write_errors
from runner.base.stop import StopRequest
from runner.config.schema.calls.of_datasets import DatasetImportCall
from runner.tools.dataset.download.address import TIMEOUT_SECONDS, Address, RangeError, open_address
from runner.tools.dataset.download.partial_download import DownloadState, PartialDownload
from runner.tools.dataset.staging import refuse_full_disk

_CHUNK_BYTES = 1 << 20
_GIB = 1 << 30
_MB = 10**6
_PAUSES_SECONDS = (1.0, 2.0, 4.0)
"""Waits after consecutive attempts that gained no bytes; the attempt after the last one fails."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class _ConnectionLostError(Exception):
    """The attempt ended early; the next one may resume the download."""


class Transfer:
    """The download of one file, in one or more attempts."""

    def __init__(
        self, call: DatasetImportCall, address: Address, partial: PartialDownload, output: Path, stop: StopRequest
    ) -> None:
        self._call = call
        self._address = address
        self._partial = partial
        self._output = output
        self._stop = stop
        self._max_bytes = int(call.max_download_gib * _GIB)

    def run(self) -> None:
        """Download until the file is complete.

        Raises:
            DownloadError: the server or the network fails, or the file is larger than the limit.
            OutputError: the disk is full, or can't be written.
            StoppedOnRequest: a signal asked for it.
        """
        furthest, failures = self._partial.num_bytes(), 0
        with progress_line() as line:
            while not self._partial.is_complete():
                try:
                    self._attempt(line)
                except _ConnectionLostError as error:
                    num_bytes = self._partial.num_bytes()
                    failures = 0 if num_bytes > furthest else failures + 1
                    furthest = max(furthest, num_bytes)
                    if failures > len(_PAUSES_SECONDS):
                        raise self._refusal(f"{error}, again and again{self._kept()}") from error
                    LOGGER.info("%s: %s after %s; trying again", self._address.shown, error, _megabytes(num_bytes))
                    time.sleep(_PAUSES_SECONDS[max(failures - 1, 0)])
                else:
                    return

    def _attempt(self, line: ProgressLine) -> None:
        self._raise_if_stopped()
        have = self._partial.num_bytes()
        headers = {"Accept-Encoding": "identity", "User-Agent": "runner"}
        if have and self._partial.state is not None and self._partial.state.validator is not None:
            # RFC 9110, 13.1.5: if the file has changed, the server sends all of it.
            headers |= {"Range": f"bytes={have}-", "If-Range": self._partial.state.validator}
        else:
            have = 0
        with self._opened(headers) as response:
            if response.status == HTTPStatus.PARTIAL_CONTENT and have:
                total = self._continued(response, have)
            elif response.status == HTTPStatus.OK:
                if have:
                    LOGGER.info(
                        "%s: restarts, because the file has changed or the server sends no ranges", self._address.shown
                    )
                have, total = 0, response.length
                self._check_size(total, total or 0)
                self._partial.begin(
                    DownloadState(
                        validator=_validator(response),
                        total=total,
                        content_type=(response.headers.get("Content-Type") or "")[:100] or None,
                    )
                )
            else:
                raise self._refusal(f"the server answered with status {response.status}; is the address right?")
            self._copy(response, have, total, line)

    def _opened(self, headers: dict[str, str]) -> HTTPResponse:
        try:
            return open_address(self._address, headers)
        except RangeError as error:
            self._partial.clear()
            raise _ConnectionLostError("the server's file is smaller than the partial download; restarting") from error
        except DownloadError as error:
            raise DownloadError(f"{error}{self._kept()}") from error

    def _continued(self, response: HTTPResponse, have: int) -> int | None:
        """Check that the response is the rest of the partial download; the size of the whole file."""
        state = self._partial.state
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
        assert state is not None, "a range was requested"
        # A server that ignores If-Range sends the validators of the changed file.
        validators = {text for name in ("ETag", "Last-Modified") if (text := response.headers.get(name)) is not None}
        is_rest = found is not None and int(found[1]) == have and (not validators or state.validator in validators)
        total = int(found[3]) if found is not None and found[3] != "*" else None
        if not is_rest or (None not in (total, state.total) and total != state.total):
            self._partial.clear()
            raise _ConnectionLostError("the server sent another range than requested; restarting")
        total = total if total is not None else state.total
        self._check_size(total, (total or have) - have)
        LOGGER.info("%s: resumes after %s", self._address.shown, _megabytes(have))
        return total

    def _copy(self, response: HTTPResponse, have: int, total: int | None, line: ProgressLine) -> None:
        shown = have
        with named_write_errors(self._partial.file), self._partial.file.open("ab") as file:
            while total is None or have < total:
                self._raise_if_stopped()
                chunk = _read(response, _CHUNK_BYTES if total is None else min(_CHUNK_BYTES, total - have))
                if not chunk:
                    break
                have += len(chunk)
                self._check_size(have, 0)
                file.write(chunk)
                shown = self._show(line, shown, have, total)
        if total is None and response.chunked:
            self._partial.complete()  # the last chunk marks the end; a closed connection may be an error
        if total is not None and have < total:
            raise _ConnectionLostError(f"the connection closed before all of {_megabytes(total)} had been received")

    def _show(self, line: ProgressLine, shown: int, have: int, total: int | None) -> int:
        """Update the progress line after enough bytes; the number of bytes that it shows now."""
        step = _MB if line.is_live else max((total or 0) // 10, 100 * _MB)
        if have - shown < step and have != total:
            return shown
        detail = "" if total is not None else "size unknown"
        whole = -(-(total if total is not None else self._max_bytes) // _MB)
        line.update("downloading", detail, whole if have == total else have // _MB, whole, unit="MB")
        return have

    def _check_size(self, num_bytes: int | None, remaining: int) -> None:
        if num_bytes is not None and num_bytes > self._max_bytes:
            self._partial.clear()
            raise self._refusal(
                f"is larger than max_download_gib = {self._call.max_download_gib:g} GiB; if that is right, raise it"
            )
        if remaining:
            refuse_full_disk(self._output, remaining)

    def _kept(self) -> str:
        num_bytes = self._partial.num_bytes()
        can_resume = num_bytes and self._partial.state is not None and self._partial.state.validator is not None
        return f" ({_megabytes(num_bytes)} are kept; the same command resumes)" if can_resume else ""

    def _raise_if_stopped(self) -> None:
        self._stop.raise_if_received(f"nothing was imported{self._kept()}")

    def _refusal(self, message: str) -> DownloadError:
        return DownloadError(f"input = {self._address.shown}: {message}")


def _read(response: HTTPResponse, num_bytes: int) -> bytes:
    try:
        return response.read1(num_bytes)
    except TimeoutError as error:
        raise _ConnectionLostError(f"no data was received for {TIMEOUT_SECONDS:g} seconds") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _ConnectionLostError("the connection failed") from error


def _validator(response: HTTPResponse) -> str | None:
    """A strong validator (RFC 9110, 8.8): the ETag, or Last-Modified if it is at least a second old."""
    etag, changed, now = (response.headers.get(name) for name in ("ETag", "Last-Modified", "Date"))
    if etag is not None and re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', etag):  # a weak one begins with W/
        return etag
    if changed is None or now is None:
        return None
    try:
        is_settled = parsedate_to_datetime(now) - parsedate_to_datetime(changed) >= timedelta(seconds=1)
    except (TypeError, ValueError):
        return None
    return changed if is_settled else None


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / _MB:,.1f} MB"
