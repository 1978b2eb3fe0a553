import pickle
import re
from pathlib import Path

import pytest

from runner.base import errors
from runner.base.errors import ConfigError, Problem, RunnerError, UsageError

NAMED = sorted(
    name
    for name, item in vars(errors).items()
    if isinstance(item, type) and issubclass(item, RunnerError) and name not in ("RunnerError", "ProblemsError")
)


def test_every_name_and_exit_code_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", page, re.MULTILINE))
    assert rows == {name: str(getattr(errors, name).exit_code) for name in NAMED}


def test_several_problems_are_numbered_and_values_read_as_in_yaml():
    problems = [
        Problem(key="a.b", value=True, has_value=True, message="must be a number", hint="try 1", origin="from here"),
        Problem(key="c", value="x y", has_value=True, message="no such key"),
        Problem(key="d", message="needs a value"),
    ]
    assert str(ConfigError(problems)) == (
        "3 mistakes\n  1. a.b = true: must be a number; try 1 [from here]\n  2. c = 'x y': no such key\n"
        "  3. d: needs a value"
    )
    assert str(ConfigError(problems[:1])) == "a.b = true: must be a number; try 1 [from here]"


@pytest.mark.parametrize("error", [ConfigError([Problem(key="a", message="b")]), errors.LaunchError("x")])
def test_errors_cross_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.name) == (type(error), str(error), error.name)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("--" + "x" * 3_000_000 + " is no flag"),
        ConfigError([Problem(key="a" * 3_000_000, message="b", hint="is no flag")]),
        ConfigError([Problem(key=f"key{number}", message="is no flag") for number in range(10_000)]),
    ],
)
def test_a_message_of_any_length_is_shown_in_some_thousand_characters(error):
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again)
    assert len(str(error)) < 10_100
    assert str(error).endswith("is no flag")
    assert "characters left out" in str(error)


def test_a_list_of_mistakes_of_a_usual_length_is_shown_as_a_whole():
    error = ConfigError([Problem(key=f"key{number}", message="must be a whole number") for number in range(150)])
    assert str(error).count("must be") == 150
