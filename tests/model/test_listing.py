from __future__ import annotations

import json
import sys

import pytest

from runner.base.errors import ConfigError, MissingPackageError
from runner.cli.commands.architectures import run


def listed(capsys, *argv: str) -> list[dict[str, object]]:
    assert run([*argv, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_names_of_all_sources_with_parameters_size_and_weights(capsys):
    theirs, timms = listed(capsys, "pattern=resnet18")
    assert theirs == {
        "name": "resnet18",
        "source": "torchvision",
        "num_parameters": 11_689_512,
        "image_size": 224,
        "weights": ["IMAGENET1K_V1"],
    }
    assert (timms["source"], timms["num_parameters"]) == ("timm", 11_689_512)
    assert "a1_in1k" in timms["weights"]


def test_a_table_says_how_many_more_there_are(capsys):
    assert run(["pattern=test_*", "source=timm", "limit=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "model", "parameters", "px", "weights"]
    assert len(lines) == 4
    assert "more names match (limit=2)" in lines[-1]


def test_a_pattern_without_a_match_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"pattern = 'resnt50'.*did you mean resnet50\?"):
        run(["pattern=resnt50"])


def test_without_timm_the_others_are_listed(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert [one["source"] for one in listed(capsys, "pattern=resnet18")] == ["torchvision"]
    with pytest.raises(MissingPackageError, match="pip install"):
        run(["source=timm"])


def test_models_of_installed_packages_are_listed(capsys, install_models):
    install_models("def net(num_classes): ...", my_own_net="model_zoo_of_a_test:net")
    (mine,) = listed(capsys, "pattern=my_own_*")
    assert (mine["source"], mine["num_parameters"]) == ("custom", None)
