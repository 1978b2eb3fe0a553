"""The formats of a file of scores. Each grows row by row, and after a kill its complete rows can be counted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.base.errors import ConfigError, MissingPackageError, Problem, how_to_install
from runner.base.files import publish, temporary_beside
from runner.base.safe_text import csv_lines, nine_digits

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv", ".jsonl", ".parquet")
_ROWS_PER_GROUP = 8192


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of consecutive images."""

    names: Sequence[str]
    labels: Sequence[str | None] | None
    predicted: Sequence[str | None]
    """Class names; None where the image can't be read."""
    probabilities: npt.NDArray[np.float32]
    """Shape (N, classes); without meaning where the image can't be read."""
    errors: Sequence[str | None]
    """Why an image can't be read."""

    def rows(self) -> Iterator[list[Any]]:
        """The cells of each image in the order of :func:`columns`; numbers with at most nine digits."""
        for position, name in enumerate(self.names):
            label = [] if self.labels is None else [self.labels[position]]
            is_scored = self.predicted[position] is not None
            shares = self.probabilities[position].tolist()
            cells = [nine_digits(share) for share in shares] if is_scored else [None] * len(shares)
            yield [name, *label, self.predicted[position], *cells, self.errors[position]]


def columns(classes: Sequence[str], *, has_labels: bool) -> list[str]:
    """Names of the columns."""
    label = ["label"] if has_labels else []
    return ["path", *label, "Scored Labels", *(f"Scored Probabilities_{name}" for name in classes), "error"]


class Format(Protocol):
    """Encodes rows so that a file which is cut off anywhere can be continued."""

    def head(self) -> bytes:
        """The first bytes of a file."""

    def encode(self, scored: Scored) -> bytes:
        """The bytes to append for these rows."""

    def complete_rows(self, file: Path) -> tuple[int, int]:
        """Number of complete rows of an unfinished file, and the byte position where they end (if there are any)."""

    def finish(self, unfinished: Path, finished: Path) -> None:
        """Turn the unfinished file into the finished one, in its final encoding, and sync it to disk."""


def format_of(output: Path, columns: Sequence[str]) -> Format:
    """The format that the ending of a file's name asks for.

    Raises:
        ConfigError: for an unknown ending.
        MissingPackageError: for Parquet without pyarrow.
    """
    match output.suffix.lower():
        case ".csv":
            return _Csv(columns)
        case ".jsonl":
            return _JsonLines(columns)
        case ".parquet":
            return _Parquet(columns)
        case _:
            problem = f"must end in {', '.join(SUFFIXES)}"
            raise ConfigError([Problem(key="output", value=str(output), has_value=True, message=problem)])


@dataclass(frozen=True)
class _Csv:
    columns: Sequence[str]

    def head(self) -> bytes:
        return csv_lines([self.columns]).encode(errors="backslashreplace")

    def encode(self, scored: Scored) -> bytes:
        return csv_lines(scored.rows()).encode(errors="backslashreplace")

    def complete_rows(self, file: Path) -> tuple[int, int]:
        """Names may hold line feeds within quotes: a row ends at a line feed after an even number of quotes."""
        num_records, end, position, num_quotes = 0, 0, 0, 0
        with file.open("rb") as stream:
            for line in stream:
                position += len(line)
                num_quotes += line.count(b'"')
                if line.endswith(b"\n") and num_quotes % 2 == 0:
                    num_records, end = num_records + 1, position
        return max(num_records - 1, 0), end

    def finish(self, unfinished: Path, finished: Path) -> None:
        publish(unfinished, finished)


@dataclass(frozen=True)
class _JsonLines:
    columns: Sequence[str]

    def head(self) -> bytes:
        return b""

    def encode(self, scored: Scored) -> bytes:
        objects = (dict(zip(self.columns, row, strict=True)) for row in scored.rows())
        lines = (json.dumps(item, ensure_ascii=False) + "\n" for item in objects)
        return "".join(lines).encode(errors="backslashreplace")

    def complete_rows(self, file: Path) -> tuple[int, int]:
        num_rows, end = 0, 0
        with file.open("rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    num_rows, end = num_rows + 1, end + len(line)
        return num_rows, end

    def finish(self, unfinished: Path, finished: Path) -> None:
        publish(unfinished, finished)


class _Parquet:
    """An unfinished file is a stream of Arrow record batches, since incomplete Parquet can't be read."""

    def __init__(self, columns: Sequence[str]) -> None:
        try:
            import pyarrow  # noqa: PLC0415 - an extra, and only for this format
        except ImportError as error:
            raise MissingPackageError(
                f"a .parquet file needs pyarrow, which is not installed: {how_to_install('parquet')}; "
                "or write .csv or .jsonl"
            ) from error
        self._pa = pyarrow
        texts = {"path", "label", "Scored Labels", "error"}
        kinds = [(name, pyarrow.string() if name in texts else pyarrow.float32()) for name in columns]
        self._schema: pa.Schema = pyarrow.schema(kinds)

    def head(self) -> bytes:
        head: bytes = self._schema.serialize().to_pybytes()
        return head

    def encode(self, scored: Scored) -> bytes:
        unread = np.array([label is None for label in scored.predicted])
        label = [] if scored.labels is None else [scored.labels]
        arrays = [
            *(self._pa.array(texts, self._pa.string()) for texts in (scored.names, *label, scored.predicted)),
            *(self._pa.array(shares, self._pa.float32(), mask=unread) for shares in scored.probabilities.T),
            self._pa.array(scored.errors, self._pa.string()),
        ]
        batch = self._pa.record_batch(arrays, schema=self._schema)
        encoded: bytes = batch.serialize().to_pybytes()
        return encoded

    def complete_rows(self, file: Path) -> tuple[int, int]:
        num_rows, end = 0, 0
        with self._pa.OSFile(str(file)) as stream:
            for batch, position in self._batches(stream):
                num_rows, end = num_rows + batch.num_rows, position
        return num_rows, end

    def finish(self, unfinished: Path, finished: Path) -> None:
        import pyarrow.parquet  # noqa: PLC0415

        temporary = temporary_beside(finished)
        try:
            with (
                self._pa.OSFile(str(unfinished)) as stream,
                pyarrow.parquet.ParquetWriter(temporary, self._schema) as writer,
            ):
                waiting: list[Any] = []
                for batch, _ in self._batches(stream):
                    waiting.append(batch)
                    if sum(item.num_rows for item in waiting) >= _ROWS_PER_GROUP:
                        writer.write_table(self._pa.Table.from_batches(waiting))
                        waiting = []
                if waiting:
                    writer.write_table(self._pa.Table.from_batches(waiting))
            publish(temporary, finished)
        finally:
            temporary.unlink(missing_ok=True)
        unfinished.unlink()

    def _batches(self, stream: Any) -> Iterator[tuple[Any, int]]:  # noqa: ANN401 - pyarrow has no types
        """The whole record batches of a stream, each with the position where it ends."""
        try:
            reader = self._pa.ipc.open_stream(stream)
            while True:
                yield reader.read_next_batch(), stream.tell()
        except (StopIteration, self._pa.ArrowInvalid, OSError):
            return  # the end of the file, or an incomplete batch
