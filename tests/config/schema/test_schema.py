"""Every key is guarded: a slip of one letter anywhere is refused with the key that was meant."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

from runner.base.errors import ConfigError, Problem
from runner.config.hydra_compose import ComposedJob
from runner.config.schema.checks.validation import known_keys, validate_config
from tests.composed import compose_jobs

# One option for each variant of each group.
VARIANTS = (
    (),
    ("model=densenet121", "data=folder", "data.root=photos", "optimizer=adamw", "schedule=cosine"),
    ("model=torchvision", "model.name=efficientnet_b0", "data=torchvision", "schedule=step"),
    ("model=custom", "model.name=mine", "data=synthetic", "schedule=constant"),
)


@functools.cache
def composed(argv: tuple[str, ...]) -> dict[str, Any]:
    jobs: list[ComposedJob] = []
    compose_jobs(argv, jobs.append)
    return jobs[0].config.model_dump(mode="json")


def values_of(*argv: str) -> dict[str, Any]:
    return copy.deepcopy(composed(argv))


def refused(values: dict[str, Any], *before: Problem) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        validate_config(values, before)
    return list(caught.value.problems)


def section_of(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    *parents, last = key.split(".")
    for part in parents:
        values = values[part]
    return values, last


# Each key once, with the first of the variants that has it.
KEYS = sorted({key: argv for argv in reversed(VARIANTS) for key in known_keys(composed(argv))}.items())


def slips(name: str) -> list[str]:
    """One letter doubled, left out or swapped with its neighbour; of short names only the first."""
    middle = len(name) // 2
    doubled = name[: middle + 1] + name[middle:]
    if len(name) < 4:
        return [doubled, name + name[-1]]
    left_out = name[:middle] + name[middle + 1 :]
    return [doubled, name + name[-1], left_out, name + "s", name.capitalize()]


@pytest.mark.parametrize(("key", "argv"), KEYS, ids=[f"{key} {argv[0] if argv else ''}".strip() for key, argv in KEYS])
def test_a_slip_in_any_key_is_refused_with_the_key_that_was_meant(key, argv):
    for slip in slips(key.rpartition(".")[2]):
        values = values_of(*argv)
        section, last = section_of(values, key)
        section[slip] = section[last]
        (problem,) = refused(values)
        assert problem.key == ".".join([*key.split(".")[:-1], slip])
        assert problem.message == "no such key"
        assert problem.hint == f"did you mean {key}?"


@pytest.mark.parametrize(("key", "argv"), KEYS, ids=[f"{key} {argv[0] if argv else ''}".strip() for key, argv in KEYS])
def test_any_key_that_is_missing_is_named(key, argv):
    values = values_of(*argv)
    section, last = section_of(values, key)
    del section[last]
    problems = refused(values)
    assert key in {problem.key for problem in problems}
    assert all("missing" in problem.message or problem.key == "data.root" for problem in problems)


def test_the_known_keys_are_those_of_a_composed_config():
    def leaves(node: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for name, child in node.items():
            found.add(f"{prefix}{name}")
            if isinstance(child, dict) and name != "arguments":
                found |= leaves(child, f"{prefix}{name}.")
        return found

    for argv in VARIANTS:
        assert set(known_keys(composed(argv))) == leaves(composed(argv))


@pytest.mark.parametrize("argv", VARIANTS)
def test_a_config_that_was_judged_once_is_right_forever(argv):
    config = validate_config(values_of(*argv))
    assert validate_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("value", ["five", True, None, [3], {"a": 1}, 2.5, -1, 0, float("inf"), float("nan")])
def test_a_count_takes_whole_numbers_above_zero_only(value):
    values = values_of()
    values["trainer"]["epochs"] = value
    (problem,) = refused(values)
    assert problem.key == "trainer.epochs"
    assert problem.message in ("must be a whole number", "must be at least 1")


@pytest.mark.parametrize("value", ["fast", True, None, [0.1], -1, 0, float("inf"), float("nan")])
def test_a_rate_takes_finite_numbers_above_zero_only(value):
    values = values_of()
    values["optimizer"]["lr"] = value
    (problem,) = refused(values)
    assert problem.key == "optimizer.lr"
    assert problem.message in ("must be a number", "must be a finite number", "must be greater than 0")


def test_a_whole_number_is_a_rate_too():
    values = values_of()
    values["optimizer"]["lr"] = 1
    assert validate_config(values).optimizer.lr == 1.0


def test_a_wrong_value_of_a_union_type_is_one_problem():
    values = values_of()
    values["data"]["workers"] = "many"
    (problem,) = refused(values)
    assert problem.message == "must be 'auto' or a whole number"


def test_mistakes_found_before_come_first_and_hide_no_other():
    values = values_of()
    values["trainer"]["epochs"] = -1
    before = Problem(key="model", message="no such option")
    assert [problem.key for problem in refused(values, before)] == ["model", "trainer.epochs"]


def test_a_mistake_that_was_found_before_is_reported_once():
    values = values_of()
    values["trainer"]["epochs"] = "${nowhere}"
    before = Problem(key="trainer.epochs", message="Interpolation key 'nowhere' not found")
    assert refused(values, before) == [before]


def test_a_value_that_yaml_has_but_a_config_has_not_is_refused():
    values = values_of()
    values["output_dir"] = b"outputs"
    (problem,) = refused(values)
    assert (problem.key, problem.message.endswith("not binary data")) == ("output_dir", True)


def test_the_error_for_a_key_of_another_option_names_the_option():
    values = values_of()
    values["optimizer"]["betas"] = [0.9, 0.99]
    values["model"]["arguments"] = {}
    hints = {problem.key: problem.hint for problem in refused(values)}
    assert hints == {
        "optimizer.betas": "it belongs to optimizer.name = adamw",
        "model.arguments": "it belongs to model.family = custom",
    }


def test_a_key_in_the_wrong_group_is_found_elsewhere():
    values = values_of()
    values["trainer"]["batch_size"] = 32
    (problem,) = refused(values)
    assert problem.hint == "did you mean data.batch_size?"


def test_a_key_like_no_other_gets_no_hint():
    values = values_of()
    values["zzzzzz"] = 1
    (problem,) = refused(values)
    assert problem.hint is None


@pytest.mark.parametrize("mean", [[], [0.5], [0.5, 0.5], [0.5] * 4])
def test_a_list_of_a_wrong_length_is_one_mistake(mean):
    values = values_of()
    values["data"]["normalize"]["mean"] = mean
    (problem,) = refused(values)
    message = "must be a list of 3, one for each of data.channels"
    assert (problem.key, problem.message, problem.value) == ("data.normalize.mean", message, mean)


def test_a_group_that_is_no_group_is_refused():
    values = values_of()
    values["trainer"], values["model"], values["dist"] = None, "resnet50", [1]
    assert {(problem.key, problem.message) for problem in refused(values)} == {
        ("trainer", "must be a group of keys"),
        ("model", "must be a group of keys"),
        ("dist", "must be a group of keys"),
    }
