"""Credentials are masked in texts, and CSV cells are no formulas."""

from __future__ import annotations

import csv
import io
import resource
import subprocess
import sys

import pytest

from runner.base.safe_text import (
    csv_lines,
    escape_formula,
    mask_credentials,
    mask_credentials_in,
    nine_digits,
    without_secrets,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://anna:s3cret@host:5432/db", "postgresql://***@host:5432/db"),
        ("can't reach mysql+pymysql://anna:s3:cr@t@host/db now", "can't reach mysql+pymysql://***@host/db now"),
        ("https://anna:s3:cr/et@host/x", "https://***@host/x"),
        ("https://anna:s#3?cr@et@host/x", "https://***@host/x"),
        ("https://a:b@c/x,https://a:d@e/y", "https://***@c/x,https://***@e/y"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("postgresql://host/db?user=anna&password=s3cret&x=1", "postgresql://host/db?user=anna&password=***&x=1"),
        ("https://token@host/x and http://a:b@c", "https://***@host/x and http://***@c"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("https://host/a@b", "https://host/a@b"),
        ("anna@host", "anna@host"),
        (f"{'x' * 99}://anna:s3cret@host", f"{'x' * 99}://***@host"),
    ],
)
def test_user_information_is_masked(text, shown):
    assert mask_credentials(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://anna:s3'c ret@host/x?token=t", "https://***@host/x?***"),
        ("https://host/x?token=t", "https://host/x?***"),
        ("https://host:80/x y@z", "https://host:80/x y@z"),
        ("no address: a@b?c", "no address: a@b?c"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text, shown):
    assert without_secrets(text) == shown


def test_texts_in_nested_values_are_masked():
    assert mask_credentials_in({"a": ["x://u:p@h", 1, None], "b": {"c": ("y://t@h",)}}) == {
        "a": ["x://***@h", 1, None],
        "b": {"c": ["y://***@h"]},
    }


@pytest.mark.parametrize(
    "text",
    [
        "'a' * 3_000_000",
        "'a' * 3_000_000 + '://'",
        "'a' * 3_000_000 + '://x:y@z'",
        "'a://' + 'b' * 3_000_000",
        "'a://' + ':' * 3_000_000 + '@'",
        "'a://b' * 600_000",
        "'://' * 1_000_000",
        "'@' * 3_000_000",
    ],
)
def test_long_texts_of_any_shape_are_read_once(text):
    code = f"from runner.base.safe_text import mask_credentials as mask; assert mask({text}).replace('***', '')"
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # noqa: E731
    assert subprocess.run([sys.executable, "-c", code], preexec_fn=limit, check=False).returncode == 0


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx", "\nx"])
def test_formulas_are_escaped(text):
    assert escape_formula(text) == f"'{text}"


def test_other_texts_and_numbers_stay_as_they_are():
    texts = ["plain", "a=b", "", "🐜", 'a "b", c\nd']
    assert [escape_formula(text) for text in texts] == texts
    ((*cells, number, missing),) = csv.reader(io.StringIO(csv_lines([[*texts, -1.5, None]])))
    assert (cells, number, missing) == (texts, "-1.5", "")


def test_nine_digits_tell_float32_values_apart():
    import numpy as np

    values = np.random.default_rng(0).random(1000, dtype=np.float32)
    assert all(np.float32(nine_digits(float(value))) == value for value in values)
    assert len(repr(nine_digits(float(values[0])))) <= 11
