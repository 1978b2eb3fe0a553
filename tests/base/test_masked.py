from __future__ import annotations

import pytest

from runner.base.masked import masked, masked_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://anna:s3cret@host:5432/db", "postgresql://***@host:5432/db"),
        ("can't reach mysql+pymysql://anna:s3:cr@t@host/db now", "can't reach mysql+pymysql://***@t@host/db now"),
        ("https://token@host/x and http://a:b@c", "https://***@host/x and http://***@c"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("https://host/a@b", "https://host/a@b"),
        ("anna@host", "anna@host"),
    ],
)
def test_user_information_is_masked(text, shown):
    assert masked(text) == shown


def test_values_are_masked_wherever_they_stand():
    assert masked_values({"a": ["x://u:p@h", 1, None], "b": {"c": ("y://t@h",)}}) == {
        "a": ["x://***@h", 1, None],
        "b": {"c": ["y://***@h"]},
    }
