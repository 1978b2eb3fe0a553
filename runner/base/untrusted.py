"""Reads YAML and JSON from other people: regular files only, within limits, nothing executed.

A device, a FIFO, an alias bomb or a file nested 50,000 deep raises :class:`UntrustedFileError` instead of hanging,
filling the memory or raising RecursionError. Callers turn it into the named error of what they read.
"""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

import yaml

from runner.base.reasons import reason_of
from runner.base.reasons.syntax import json_mistake, yaml_mistake

MAX_BYTES = 64 << 20
"""Largest JSON file that is read; the per-image results of a large evaluation split take some ten megabytes."""
MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 10_000
MAX_YAML_ALIASES = 100
MAX_DEPTH = 100
MAX_DIGITS = 250
"""Characters of the longest number in any notation: a float can hold it, and Python prints it."""
MAX_MESSAGE = 10_000
"""Longest message; a name in a message may be as long as a file."""
_CHUNK_BYTES = 1 << 20
# Control characters of terminals (C0 and C1); line ends and marks that reverse the direction of text (Trojan Source,
# CVE-2021-42574); lone surrogates, which no stream can encode, and the bytes that PEP 383 stores in them.
_OBEYED = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))},
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
    **{0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)},
}
_OBEYED_IN_LINES = {code: text for code, text in _OBEYED.items() if chr(code) not in "\t\n"}
_TOO_LONG_NUMBER = f"this number is too long; at most {MAX_DIGITS} characters of one are read"


class UntrustedFileError(ValueError):
    """A file or text that is not read: it is no regular file, malformed, or beyond a limit."""


def printable(text: str) -> str:
    """A name from others on one line, with the escape sequences that a terminal would execute shown as text."""
    return text if text.isascii() and text.isprintable() else text.translate(_OBEYED)


def printable_lines(text: str) -> str:
    """As :func:`printable` for a message of several lines: tabs and line ends stay."""
    return text.translate(_OBEYED_IN_LINES)


def shorten_middle(text: str, most: int = MAX_MESSAGE) -> str:
    """A text of at most about `most` characters; the middle of a longer one is replaced by how much was left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters left out] … {text[-half:]}"


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading; never blocks.

    Args:
        path: links are followed; :mod:`runner.base.user_paths` checks the links of folders from others.

    Raises:
        FileNotFoundError: there is none.
        OSError: it can't be read.
        UntrustedFileError: it is a device, a FIFO or the like.
    """
    if "\0" in str(path):
        raise UntrustedFileError(f"'{printable(str(path))}' is no path: it has a NUL character in it")
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a FIFO or a socket"
        raise UntrustedFileError(f"{path} is {what}, no regular file")
    return os.fdopen(descriptor, "rb")


def unreadable(path: str | Path, error: Exception) -> str:
    """That a file can't be read and why, for an error of :func:`read_bytes` and the other functions here."""
    reason = reason_of(error)
    is_named = isinstance(error, UntrustedFileError) and reason.startswith(str(path))
    return printable(reason) if is_named else f"{printable(str(path))} can't be read: {reason}"


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: see :func:`open_regular`.
        max_bytes: largest file that is read.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as :func:`open_regular`.
        UntrustedFileError: the file is larger than max_bytes.
    """
    chunks: list[bytes] = []
    num_left = max_bytes + 1
    # In chunks: read(n) allocates n bytes, however small the file is.
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
        FileNotFoundError, OSError, UntrustedFileError: as :func:`open_regular`.
    """
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        return file.read(max_bytes)


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The content of a regular UTF-8 file.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as :func:`read_bytes`.
        UntrustedFileError: the file is no UTF-8.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedFileError(
            f"{path} is no UTF-8 text: byte {error.start + 1} belongs to no character of UTF-8; save it as UTF-8"
        ) from None


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The value in a JSON file.

    Raises:
        FileNotFoundError, OSError, UntrustedFileError: as :func:`read_text` and :func:`parse_json`.
    """
    return parse_json(read_text(path, max_bytes=max_bytes), str(path))


def parse_json(text: str, name: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The value of a JSON text.

    Args:
        text: the JSON.
        name: of its file, for messages.

    Raises:
        UntrustedFileError: the text is no JSON, has NaN, infinity or too long a number, or is nested too deep.
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
    except json.JSONDecodeError as error:
        raise UntrustedFileError(f"{name}{json_mistake(error)}") from None
    if _is_deeper(value, MAX_DEPTH):
        raise UntrustedFileError(f"{name} is nested too deep to be read: more than {MAX_DEPTH} levels")
    return value


def _is_deeper(value: object, limit: int) -> bool:
    """Whether lists and objects are nested deeper than the limit, found without recursion."""
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
        FileNotFoundError, OSError, UntrustedFileError: as :func:`read_text` and :func:`parse_yaml`.
    """
    return parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value of a YAML text of plain types.

    Args:
        text: the YAML.
        name: of its file, for messages.

    Raises:
        UntrustedFileError: the text is no YAML, has a tag that would construct an object, or exceeds a limit of size,
            depth, nodes, aliases or digits.
    """
    if len(text) > MAX_YAML_BYTES:
        raise UntrustedFileError(f"{name} is larger than {MAX_YAML_BYTES:,} characters, the most that is read as YAML")
    try:
        _check_events(text, name)
        return yaml.load(text, Loader=_Loader)
    except _TooLongError as error:
        raise UntrustedFileError(f"{name}, {error}") from None
    except UntrustedFileError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise UntrustedFileError(f"{name}{yaml_mistake(error)}") from None


class _TooLongError(Exception):
    pass


class _Loader(yaml.SafeLoader):
    """Plain types, and only numbers that Python also prints: it reads hexadecimals of any length."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Check the length first."""
        self._check_length(node)
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Check the length first."""
        self._check_length(node)
        return super().construct_yaml_float(node)

    def _check_length(self, node: yaml.ScalarNode) -> None:
        if len(node.value) > MAX_DIGITS:
            line, column = node.start_mark.line + 1, node.start_mark.column + 1
            raise _TooLongError(f"line {line}, column {column}: {_TOO_LONG_NUMBER}")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _check_events(text: str, name: str) -> None:
    """Check the limits on the parser's events, before values are constructed.

    An alias counts as all nodes under its anchor, since code that walks the values visits them again each time.
    """
    num_nodes = num_aliases = 0
    open_anchors: list[tuple[str | None, int]] = []
    num_under: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                open_anchors.append((event.anchor, num_nodes))
                num_nodes += 1
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                anchor, num_before = open_anchors.pop()
                if anchor is not None:
                    num_under[anchor] = num_nodes - num_before
            case yaml.ScalarEvent():
                num_nodes += 1
            case yaml.AliasEvent():
                if any(anchor == event.anchor for anchor, _ in open_anchors):
                    raise UntrustedFileError(f"{name} holds itself: *{event.anchor} stands within &{event.anchor}")
                num_aliases += 1
                num_nodes += num_under.get(event.anchor, 1)
        for count, most, what in (
            (len(open_anchors), MAX_DEPTH, "levels"),
            (num_nodes, MAX_YAML_NODES, "values"),
            (num_aliases, MAX_YAML_ALIASES, "aliases"),
        ):
            if count > most:
                raise UntrustedFileError(f"{name} has more than {most:,} {what}, the most that is read of a YAML file")
