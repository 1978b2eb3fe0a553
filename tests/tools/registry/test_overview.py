from __future__ import annotations

import json

import pytest

from runner.base.errors import ConfigError, RegistryError
from runner.cli.commands.models import download, list, show
from tests.tools.registry.conftest import small_draft


@pytest.fixture
def uri(registry, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("birds", "birds", "ants"):
        registry.add(name, small_draft())
    registry.set_alias("birds", "champion", 1)
    return f"registry.uri={registry.place}"


def test_models_are_listed_with_their_newest_version(uri, capsys):
    assert list.run([uri]) == 0
    head, ants, birds = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["name", "newest", "aliases"]
    assert ants.split()[:3] == ["ants", "1", "–"]
    assert birds.split()[:6] == ["birds", "2", "champion=1", "resnet18", "val_top1", "75.00%"]
    list.run([uri, "format=json"])
    found = json.loads(capsys.readouterr().out)
    assert [(model["name"], model["versions"], model["aliases"]) for model in found] == [
        ("ants", [1], {}),
        ("birds", [1, 2], {"champion": 1}),
    ]


def test_an_empty_registry_says_how_it_is_filled(tmp_path, capsys):
    list.run([f"registry.uri={tmp_path}"])
    assert "models register run=DIR name=NAME makes the first" in capsys.readouterr().out


def test_versions_are_shown_the_newest_first(uri, capsys):
    show.run([uri, "name=birds"])
    head, second, first = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["version", "aliases"]
    assert (second.split()[:2], first.split()[:2]) == (["2", "–"], ["1", "champion"])
    assert "2026-11-20/18-47-13-044563" in first
    show.run([uri, "name=birds", "format=json"])
    assert [facts["aliases"] for facts in json.loads(capsys.readouterr().out)] == [[], ["champion"]]


def test_one_version_is_shown_in_full(uri, capsys):
    show.run([uri, "name=birds", "version=1"])
    text = capsys.readouterr().out
    for part in (
        "version     birds/1\n",
        "aliases     champion\n",
        "val         1,200 images, top1 75.00%, top5 100.00%, loss 0.5000\n",
        f"commit      {'a' * 40} with uncommitted changes\n",
        "names       baseline\n",
        "  model/model.safetensors\n",
    ):
        assert part in text, part
    show.run([uri, "name=birds", "version=1", "format=json"])
    assert json.loads(capsys.readouterr().out)["lineage"]["tags"] == {"set": "v2"}


def test_what_is_not_there_is_said(uri, tmp_path):
    with pytest.raises(RegistryError, match="has no model 'bees'"):
        show.run([uri, "name=bees"])
    with pytest.raises(RegistryError, match="has no birds/7"):
        show.run([uri, "name=birds", "version=7"])
    with pytest.raises(ConfigError, match=r"name = '\.\./x'"):
        show.run([uri, "name=../x"])
    with pytest.raises(ConfigError, match="names no registered version"):
        download.run([uri, "name=birds", f"output={tmp_path / 'x'}"])


def test_a_version_is_downloaded(uri, tmp_path, capsys):
    download.run([uri, "name=birds@champion", f"output={tmp_path / 'x'}"])
    assert "downloaded  birds/1" in capsys.readouterr().out
    assert json.loads((tmp_path / "x" / "version.json").read_text())["version"] == 1
