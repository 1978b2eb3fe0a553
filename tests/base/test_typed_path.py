from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import ConfigError
from runner.base.user_paths import typed_path


def test_the_home_folder_is_meant_by_its_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert typed_path("~/zz", "output_dir") == Path("/home/anna/zz")
    assert typed_path("a/../b", "output_dir") == Path("a/../b")


@pytest.mark.parametrize("text", ["~nosuchuser/x", "a\0b", "x/" * 3_000])
def test_what_is_no_path_is_refused_with_its_key(text):
    with pytest.raises(ConfigError, match="output_dir"):
        typed_path(text, "output_dir")
