from __future__ import annotations

import sys

import pytest

from runner.base.errors import ConfigError
from runner.config.schema.checks.parts import (
    LOSSES,
    UnusablePartError,
    call_part,
    find_part,
    installed_parts,
    part_problems,
)
from tests.made_package import make_package

CODE = """
from __future__ import annotations

from pydantic import BaseModel

class Settings(BaseModel):
    width: int
    depth: int = 1

def good(settings: Settings):
    return settings.width * settings.depth

def fails(settings: Settings):
    raise ZeroDivisionError("of a user")

def no_type(settings):
    pass

def of_a_number(settings: int):
    pass

def of_two(settings: Settings, other: int):
    pass

VALUE = 3
"""
NAMES = ("good", "fails", "no_type", "of_a_number", "of_two", "VALUE", "gone")
GIVEN = {"name_key": "trainer.loss", "arguments_key": "trainer.loss_arguments"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    entries = {name.lower(): f"parts_of_a_test:{name}" for name in NAMES}
    make_package(tmp_path, "parts_of_a_test", CODE, group=LOSSES, broken="not_there:loss", **entries)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("parts_of_a_test", None)


def told(name: str, arguments: dict) -> list[tuple[str, str]]:
    return [(problem.key, problem.message) for problem in part_problems(LOSSES, name, arguments, **GIVEN)]


@pytest.mark.usefixtures("package")
def test_a_part_is_called_with_its_settings():
    assert call_part(LOSSES, "good", {"width": 3, "depth": 2}, "key") == 6
    assert call_part(LOSSES, "good", {"width": 3}, "key") == 3
    assert told("good", {"width": 3}) == []


@pytest.mark.usefixtures("package")
def test_each_setting_that_does_not_fit_is_told():
    assert told("good", {"widht": 3, "depth": "two"}) == [
        ("trainer.loss_arguments.widht", "no such setting of good"),
        ("trainer.loss_arguments.width", "this key is missing"),
        ("trainer.loss_arguments.depth", "must be a whole number"),
    ]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_type", "its parameter settings has no type"),
        ("of_a_number", "its parameter settings has the type <class 'int'>"),
        ("of_two", "can't be used: ValueError: too many values to unpack"),
        ("value", "can't be used: TypeError: 3 is not a callable object"),
        ("gone", "can't be used: AttributeError: module 'parts_of_a_test' has no attribute 'gone'"),
        ("broken", "can't be used: ModuleNotFoundError: No module named 'not_there'"),
        ("goood", "no installed package offers it under the entry point group runner.losses; there are broken, "),
    ],
)
def test_what_can_not_be_used_says_why(name, reason):
    with pytest.raises(UnusablePartError) as caught:
        find_part(LOSSES, name)
    assert reason in str(caught.value)
    ((key, message),) = told(name, {})
    assert (key, message) == ("trainer.loss", str(caught.value))


@pytest.mark.usefixtures("package")
def test_only_parts_that_can_be_used_are_listed():
    assert [part.name for part in installed_parts(LOSSES)] == ["fails", "good"]


@pytest.mark.usefixtures("package")
def test_an_error_of_the_part_is_named():
    with pytest.raises(ConfigError, match=r"key = 'fails': .* failed: ZeroDivisionError: of a user"):
        call_part(LOSSES, "fails", {"width": 3}, "key")
    with pytest.raises(ConfigError, match="this key is missing"):
        call_part(LOSSES, "good", {}, "key")


@pytest.mark.usefixtures("package")
def test_two_packages_with_one_name_are_refused(tmp_path):
    make_package(tmp_path, "other_of_a_test", CODE, group=LOSSES, good="other_of_a_test:good")
    with pytest.raises(UnusablePartError, match=r"more than once .*: other_of_a_test:good, parts_of_a_test:good"):
        find_part(LOSSES, "good")
