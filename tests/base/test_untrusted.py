from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.base.untrusted import (
    UntrustedFileError,
    parse_json,
    parse_yaml,
    printable,
    printable_lines,
    read_bytes,
    read_json,
    read_yaml,
)

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
)


def test_a_fifo_and_a_device_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(UntrustedFileError, match="no regular file"):
        read_yaml(tmp_path / "config.yaml")
    with pytest.raises(UntrustedFileError, match="no regular file"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(UntrustedFileError, match="folder"):
        read_bytes(tmp_path)


def test_escape_sequences_are_shown_as_text():
    assert printable("\x1b[2J\x9b\n") == r"\x1b[2J\x9b\x0a"
    assert printable("\u202egnp.exe\u2066\u2028") == r"\u202egnp.exe\u2066\u2028"
    assert printable(os.fsdecode(b"caf\xe9") + "\ud800") == r"caf\xe9\ud800"
    assert printable("Käfer 🐜 日本") == "Käfer 🐜 日本"
    assert printable_lines("a\tb\nc\rd") == "a\tb\nc\\x0dd"


def test_a_path_with_a_nul_is_refused(tmp_path):
    with pytest.raises(UntrustedFileError, match=r"a\\x00b"):
        read_bytes(tmp_path / "a\0b")


def test_a_file_over_the_limit_is_not_read(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(UntrustedFileError, match="larger than"):
        read_json(tmp_path / "large.json", max_bytes=1000)


def test_a_high_limit_takes_no_more_memory_than_the_file(tmp_path):
    (tmp_path / "list.json").write_bytes(bytes(3_000_000))
    assert read_bytes(tmp_path / "list.json", max_bytes=1 << 50) == bytes(3_000_000)
    assert read_bytes(tmp_path / "list.json", max_bytes=3_000_000) == bytes(3_000_000)
    with pytest.raises(UntrustedFileError, match="larger than"):
        read_bytes(tmp_path / "list.json", max_bytes=2_999_999)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "more than 10,000 values"),
        (BOMB.partition("&f")[0].rpartition("\n")[0], "more than 10,000 values"),
        ("a: &a 1\nb: [" + "*a, " * 101 + "]", "more than 100 aliases"),
        ("[" * 50_000, "more than 100 levels"),
        ("a: &a [*a]", "holds itself"),
        ("\n".join(f"k{n}: 1" for n in range(20_000)), "more than 10,000 values"),
        ("x" * 2_000_000, "larger than"),
        ("a: !!python/object/apply:os.system [ls]", "the tag python/object/apply:os.system is not read"),
        ("a: 2024-99-99", "no YAML"),
        ("a: [", "line 1"),
        ("a: \x00", "no YAML"),
        ("{[a]: 1}", "no YAML"),
    ],
)
def test_yaml_that_is_refused(text, why):
    with pytest.raises(UntrustedFileError, match=why):
        parse_yaml(text, "config.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 50_000, "too deep"),
        ("NaN", "NaN"),
        ("9" * 5_000, "number is too long"),
        ("{", "no JSON"),
        ("", "no JSON"),
    ],
)
def test_json_that_is_refused(text, why):
    with pytest.raises(UntrustedFileError, match=why):
        parse_json(text, "run.json")


def test_plain_values_are_read_as_they_stand():
    assert parse_yaml("a: &x [1, 2.5, null, text]\nb: *x", "config.yaml") == {"a": [1, 2.5, None, "text"]} | {
        "b": [1, 2.5, None, "text"]
    }
    assert parse_json('{"a": [1, 2.5, null, "text"]}', "run.json") == {"a": [1, 2.5, None, "text"]}


def test_escape_sequences_are_shown_not_obeyed():
    assert printable("a\x1b]0;title\x07\nb") == "a\\x1b]0;title\\x07\\x0ab"
    assert printable("Ameise 🐜 été") == "Ameise 🐜 été"


@pytest.mark.parametrize(
    "number",
    [
        "0x" + "f" * 6_000,
        "9" * 5_000,
        "0b" + "1" * 1_100,
        "1" + ":1" * 100_000,
        "1" + ":1" * 300 + ".5",
        "1." + "0" * 300,
    ],
)
def test_the_error_for_a_number_that_is_too_long_names_its_place(number):
    with pytest.raises(UntrustedFileError, match=r"x\.yaml, line 2, column 6: this number is too long"):
        parse_yaml(f"a: 1\nb: [{number[:0]} {number}]\n", "x.yaml")


@pytest.mark.parametrize("number", ["0x" + "f" * 248, "9" * 250, "5" + ":59" * 80, "0b" + "1" * 248])
def test_numbers_that_are_read_fit_into_a_float(number):
    (value,) = parse_yaml(f"[{number}]", "x.yaml")
    assert isinstance(value, int)
    assert float(value) > 1e70
    assert str(value)


def test_a_large_sexagesimal_with_a_fraction_is_no_crash():
    assert parse_yaml("[1:59.5]", "x.yaml") == [119.5]
