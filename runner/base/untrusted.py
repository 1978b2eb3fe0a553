"""Reads the YAML and JSON that others may have written: regular files only, within limits, nothing executed.

A device, a FIFO, a bomb of aliases or a file nested 50,000 deep ends as an :class:`UntrustedFileError`, not as a hang,
a full memory or a RecursionError. Callers turn that error into the named error of what they read.
"""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 64 << 20
"""Largest JSON file that is read: the per-image results of a large evaluation split are some ten megabytes."""
MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 10_000
MAX_YAML_ALIASES = 100
MAX_DEPTH = 100
MAX_DIGITS = 250
"""Longest number, as it is written in any notation: a float can hold it, and Python writes it as text."""
MAX_MESSAGE = 10_000
"""Characters of a message; names in it, which may be as long as a file, are not looked at one by one."""
_CHUNK_BYTES = 1 << 20
# What a terminal obeys or is confused by: C0 and C1; ends of lines and marks that turn the direction of the text around
# (Trojan Source, CVE-2021-42574); halves of characters, which no stream can encode, and bytes as PEP 383 keeps them.
_OBEYED = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))},
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
    **{0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)},
}
_OBEYED_IN_LINES = {code: text for code, text in _OBEYED.items() if chr(code) not in "\t\n"}


_TOO_LONG_NUMBER = f"this number is too long; at most {MAX_DIGITS} characters of one are read"


class UntrustedFileError(ValueError):
    """A file that is not read: what it is instead of a regular file, or which limit it breaks."""


def printable(text: str) -> str:
    """A name that came from elsewhere, on one line and without the escape sequences that a terminal would obey."""
    return text if text.isascii() and text.isprintable() else text.translate(_OBEYED)


def printable_lines(text: str) -> str:
    """A message with names in it that came from elsewhere: as :func:`printable`, but tabs and line ends stay."""
    return text.translate(_OBEYED_IN_LINES)


def shortened(text: str, most: int = MAX_MESSAGE) -> str:
    """A message that anybody can read: what is left out of the middle of a longer one is counted."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters left out] … {text[-half:]}"


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, opened for reading without waiting for anything.

    Args:
        path: a link is followed, as a user's own folder may hold some; what a received folder may link to is checked
            where that folder is opened.

    Raises:
        FileNotFoundError: there is none.
        OSError: it can't be read.
        UntrustedFileError: it is a device, a FIFO or the like.
    """
    if "\0" in str(path):
        raise UntrustedFileError(f"'{printable(str(path))}' is no path: it has a NUL character in it")
    # A FIFO would block the opening of it until somebody writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a FIFO or a socket"
        raise UntrustedFileError(f"{path} is {what}, no regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: a link is followed, as in :func:`open_regular`.
        max_bytes: largest file that is read.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as of :func:`open_regular`.
        UntrustedFileError: it is larger than that.
    """
    chunks: list[bytes] = []
    num_left = max_bytes + 1
    # To ask for all at once would take the memory for the largest file that is allowed.
    with open_regular(path) as file:
        while num_left > 0 and (chunk := file.read(min(num_left, _CHUNK_BYTES))):
            chunks.append(chunk)
            num_left -= len(chunk)
    if num_left <= 0:
        raise UntrustedFileError(f"{path} is larger than {max_bytes:,} bytes, the most that is read of such a file")
    return b"".join(chunks)


def read_tail(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The last bytes of a regular file of any length, such as a log.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as of :func:`read_bytes`.
    """
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        return file.read(max_bytes)


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The content of a regular file that is UTF-8.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as of :func:`read_bytes`.
        UntrustedFileError: it is no UTF-8 text.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedFileError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The value in a JSON file.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as of :func:`read_text`.
        UntrustedFileError: it is no JSON, has a number that JSON does not know or that is too long, or is
            nested too deep.
    """
    return parse_json(read_text(path, max_bytes=max_bytes), str(path))


def parse_json(text: str, name: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The value of a JSON text.

    Args:
        text: what is read.
        name: where it stands, for messages.

    Raises:
        UntrustedFileError: it is no JSON, has a number that JSON does not know or that is too long, or is
            nested too deep.
    """

    def refuse(constant: str) -> None:
        raise UntrustedFileError(f"{name} is no JSON: it holds {constant}")

    def whole_number(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise UntrustedFileError(f"{name}: {_TOO_LONG_NUMBER}")
        return int(digits)

    try:
        value = json.loads(text, parse_constant=refuse, parse_int=whole_number)
    except RecursionError:
        raise UntrustedFileError(f"{name} is nested too deep to be read") from None
    except UntrustedFileError:
        raise
    except ValueError as error:
        raise UntrustedFileError(f"{name} is no JSON: {error}") from None
    if _is_deeper(value, MAX_DEPTH):
        raise UntrustedFileError(f"{name} is nested too deep to be read: more than {MAX_DEPTH} levels")
    return value


def _is_deeper(value: object, limit: int) -> bool:
    """Whether lists and objects lie in each other deeper than that: whoever walks through them would recurse."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for holder in level
            if isinstance(holder, dict | list)
            for child in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def read_yaml(path: Path) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value in a YAML file of plain types.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as of :func:`read_text`.
        UntrustedFileError: it is no YAML, has a tag that would make an object, or breaks a limit of size, depth,
            nodes, aliases or digits.
    """
    return parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value of a YAML text of plain types.

    Args:
        text: what is read.
        name: where it stands, for messages.

    Raises:
        UntrustedFileError: it is no YAML, has a tag that would make an object, or breaks a limit of size, depth,
            nodes, aliases or digits.
    """
    if len(text) > MAX_YAML_BYTES:
        raise UntrustedFileError(f"{name} is larger than {MAX_YAML_BYTES:,} characters, the most that is read as YAML")
    try:
        _check_events(text, name)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        why = "; ".join(part for part in (error.problem, error.context) if part)
        raise UntrustedFileError(f"{name}{where}: this is no YAML: {why}") from None
    except _TooLongError as error:
        raise UntrustedFileError(f"{name}, {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UntrustedFileError(f"{name} is no YAML: {error}") from None
    except UntrustedFileError:
        raise
    except (ValueError, OverflowError) as error:  # a date such as 2024-99-99, a sexagesimal such as 1:1:1:…:1.5
        raise UntrustedFileError(f"{name} is no YAML: {error}") from None


class _TooLongError(Exception):
    pass


class _Loader(yaml.SafeLoader):
    """Plain types, and no number that is too long: of hexadecimals Python reads what it does not write again."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number, in any of the notations of YAML."""
        self._check_length(node)
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """A number with a fraction or an exponent."""
        self._check_length(node)
        return super().construct_yaml_float(node)

    def _check_length(self, node: yaml.ScalarNode) -> None:
        if len(node.value) > MAX_DIGITS:
            line, column = node.start_mark.line + 1, node.start_mark.column + 1
            raise _TooLongError(f"line {line}, column {column}: {_TOO_LONG_NUMBER}")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _check_events(text: str, name: str) -> None:
    """Count before anything is built: what a parser only passes by can neither recurse nor grow.

    An alias counts as all that it stands for: whoever walks the values meets that again each time.
    """
    num_nodes = num_aliases = 0
    open_anchors: list[tuple[str | None, int]] = []
    num_behind: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                open_anchors.append((event.anchor, num_nodes))
                num_nodes += 1
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                anchor, num_before = open_anchors.pop()
                if anchor is not None:
                    num_behind[anchor] = num_nodes - num_before
            case yaml.ScalarEvent():
                num_nodes += 1
            case yaml.AliasEvent():
                if any(anchor == event.anchor for anchor, _ in open_anchors):
                    raise UntrustedFileError(f"{name} holds itself: *{event.anchor} stands within &{event.anchor}")
                num_aliases += 1
                num_nodes += num_behind.get(event.anchor, 1)
        for count, most, what in (
            (len(open_anchors), MAX_DEPTH, "levels"),
            (num_nodes, MAX_YAML_NODES, "values"),
            (num_aliases, MAX_YAML_ALIASES, "aliases"),
        ):
            if count > most:
                raise UntrustedFileError(f"{name} has more than {most:,} {what}, the most that is read of a YAML file")
