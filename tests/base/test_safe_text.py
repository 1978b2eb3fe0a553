from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from runner.base.safe_text import masked, masked_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://anna:s3cret@host:5432/db", "postgresql://***@host:5432/db"),
        ("can't reach mysql+pymysql://anna:s3:cr@t@host/db now", "can't reach mysql+pymysql://***@t@host/db now"),
        ("https://token@host/x and http://a:b@c", "https://***@host/x and http://***@c"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("https://host/a@b", "https://host/a@b"),
        ("anna@host", "anna@host"),
        (f"{'x' * 99}://anna:s3cret@host", f"{'x' * 99}://***@host"),
    ],
)
def test_user_information_is_masked(text, shown):
    assert masked(text) == shown


def test_values_are_masked_wherever_they_stand():
    assert masked_values({"a": ["x://u:p@h", 1, None], "b": {"c": ("y://t@h",)}}) == {
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
    code = f"from runner.base.safe_text import masked; text = {text}; assert masked(text).replace('***', '')"
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # noqa: E731
    assert subprocess.run([sys.executable, "-c", code], preexec_fn=limit, check=False).returncode == 0
