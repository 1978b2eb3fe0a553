from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.sources.paths import cache_folder, resolve_paths

Make = Callable[..., DataConfig]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RUNNER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)


def paths_of(data: DataConfig) -> tuple[str | None, str | None, str | None, str | None]:
    return data.root, data.train, data.val, data.test


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "home/.cache/runner"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == tmp_path / "home/.cache/runner"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/runner")
    monkeypatch.setenv("RUNNER_CACHE", "mine")
    assert cache_folder() == tmp_path / "mine"


def test_a_folder_with_all_splits(tmp_path: Path, data_config: Make) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / "set" / name).mkdir(parents=True)
    root = f"{tmp_path}/set"
    assert paths_of(resolve_paths(data_config("folder", root="set"))) == (
        root,
        f"{root}/train",
        f"{root}/val",
        f"{root}/test",
    )


def test_splits_that_do_not_exist_stay_none(tmp_path: Path, data_config: Make) -> None:
    (tmp_path / "set/train").mkdir(parents=True)
    root = f"{tmp_path}/set"
    assert paths_of(resolve_paths(data_config("folder", root="set"))) == (root, f"{root}/train", None, None)


def test_splits_that_were_given_stay_even_where_missing(tmp_path: Path, data_config: Make) -> None:
    data = resolve_paths(data_config("folder", train="a", val="../b", test="~/c"))
    assert paths_of(data) == (None, f"{tmp_path}/a", f"{tmp_path.parent}/b", f"{tmp_path}/home/c")


def test_links_are_kept(tmp_path: Path, data_config: Make) -> None:
    (tmp_path / "v1/train").mkdir(parents=True)
    (tmp_path / "current").symlink_to(tmp_path / "v1")
    assert resolve_paths(data_config("folder", root="current")).train == f"{tmp_path}/current/train"


@pytest.mark.parametrize("key", ["root", "train", "val", "exclude"])
def test_a_nul_is_no_part_of_a_path(data_config: Make, key: str) -> None:
    with pytest.raises(InvalidDatasetError, match=r"a\\x00b: this is no path"):
        resolve_paths(data_config("folder", **{"root": "/tmp", key: "a\0b"}))


def test_a_root_of_a_name_that_is_too_long(data_config: Make) -> None:
    with pytest.raises(InvalidDatasetError, match="this is no path: this path is too long for its file system"):
        resolve_paths(data_config("folder", root="/" + "x" * 5000))


def test_the_home_folder_of_an_unknown_user_is_refused(data_config: Make) -> None:
    with pytest.raises(InvalidDatasetError, match=r"~no-such-user/set.*instead of ~"):
        resolve_paths(data_config("folder", root="~no-such-user/set"))


def test_digits_lie_in_the_cache_folder(tmp_path: Path, data_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", f"{tmp_path}/cache")
    root = f"{tmp_path}/cache/digits-v1"
    assert paths_of(resolve_paths(data_config("digits"))) == (root, f"{root}/train", f"{root}/val", None)
    mine = f"{tmp_path}/mine"
    assert paths_of(resolve_paths(data_config("digits", root="mine"))) == (mine, f"{mine}/train", f"{mine}/val", None)
    assert not Path(root).exists()


def test_torchvision_keeps_all_splits_in_its_root(tmp_path: Path, data_config: Make) -> None:
    root = f"{tmp_path}/home/.cache/runner/torchvision"
    assert paths_of(resolve_paths(data_config("torchvision"))) == (root, root, root, root)
    assert paths_of(resolve_paths(data_config("torchvision", name="EuroSAT"))) == (root, root, root, None)


def test_synthetic_has_no_paths(data_config: Make) -> None:
    assert paths_of(resolve_paths(data_config("synthetic"))) == (None, None, None, None)


@pytest.mark.parametrize("source", ["folder", "digits", "torchvision", "synthetic"])
def test_resolving_paths_twice_changes_nothing(source: str, data_config: Make) -> None:
    values = {} if source == "synthetic" else {"root": "set"}
    once = resolve_paths(data_config(source, **values))
    os.chdir("/")
    assert resolve_paths(once) == once


@pytest.mark.parametrize(
    ("source", "keys"),
    [("digits", ["train", "test"]), ("torchvision", ["train", "val", "test"]), ("synthetic", ["root", "train"])],
)
def test_paths_without_effect_are_mistakes(source: str, keys: list[str], data_config: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_paths(data_config(source, **dict.fromkeys(keys, "somewhere")))
    assert {problem.key for problem in caught.value.problems} == {f"data.{key}" for key in keys}
    assert f"data={source}" in str(caught.value)
    assert "somewhere" in str(caught.value)


def test_a_cache_folder_is_no_address(monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", "s3://bucket/cache")
    with pytest.raises(ConfigError, match="RUNNER_CACHE = 's3://bucket/cache': is a remote address"):
        cache_folder()
