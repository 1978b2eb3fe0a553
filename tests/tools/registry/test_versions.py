from __future__ import annotations

import pytest
from pydantic import ValidationError

from runner.base.errors import ConfigError
from runner.tools.registry.versions import Aliases, Reference, VersionRecord, read_reference
from tests.tools.registry.conftest import FACTS

FILE = {"sha256": "0" * 64, "bytes": 1}
FILES = {"model/model.json": FILE, "model/model.safetensors": FILE}
RECORD = {"format": 1, "name": "birds", "version": 1, "registered": "now", "files": FILES, **FACTS}


@pytest.mark.parametrize("text", ["models:/birds@champion", "birds@champion"])
def test_a_reference_names_an_alias(text):
    assert read_reference(text, "model") == Reference(name="birds", alias="champion")


def test_a_reference_names_a_version():
    assert read_reference("models:/birds-v1.2/12", "model") == Reference(name="birds-v1.2", version=12)
    assert str(read_reference("models:/birds/12", "model")) == "birds/12"


@pytest.mark.parametrize(
    "text",
    [
        "models:/birds",
        "models:/../birds/1",
        "models:/.birds/1",
        "models:/birds/0",
        "models:/birds/../1",
        "models:/birds@",
        "models:/birds@../x",
        "models:/a b/1",
        "models:/birds/1\n",
        "models://birds/1",
        "models:/birds/١",
    ],
)
def test_other_texts_name_no_version(text):
    with pytest.raises(ConfigError, match="names no registered version"):
        read_reference(text, "model")


def test_a_record_is_read():
    assert VersionRecord.model_validate(RECORD).files["model/model.json"].bytes == 1


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"name": "../birds"},
        {"version": 0},
        {"version": "1"},
        {"files": {"model/model.json": FILE}},
        {"files": {**FILES, "../x": FILE}},
        {"files": {**FILES, "/etc/passwd": FILE}},
        {"files": {**FILES, "a/b/c": FILE}},
        {"files": {**FILES, "a\n": FILE}},
        {"files": {**FILES, **{f"{number}": FILE for number in range(200)}}},
        {"files": {**FILES, "model/model.json": {"sha256": "x", "bytes": 1}}},
        {"lineage": None},
        {"metrics": {"val": 3}},
    ],
)
def test_a_strange_record_is_refused(change):
    with pytest.raises(ValidationError):
        VersionRecord.model_validate({**RECORD, **change})


@pytest.mark.parametrize("aliases", [{"champion": "1"}, {"champion": 0}, {"../x": 1}, {"a": [1]}])
def test_strange_aliases_are_refused(aliases):
    with pytest.raises(ValidationError):
        Aliases.model_validate(aliases)
