"""Interpolations are a closed list of forms, whose size is known before anything is resolved."""

from __future__ import annotations

import json

import pytest

from runner.base.errors import ConfigError
from runner.config.compose import compose_one
from runner.config.own_files import OwnFiles
from runner.config.references import unreadable, unresolvable

LARGE = "x" * 600_000


def doubled(num: int, name: str = "x{}", reference: str = "${{x{}}}") -> dict[str, str]:
    """Each of the keys is the one before it twice."""
    return {name.format(0): "a" * 8, **{name.format(n + 1): reference.format(n) * 2 for n in range(num)}}


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"a": "x" * 9, "b": "${a}${a}"}, []),
        (doubled(40), [f"x{n}" for n in range(16, 41)]),
        (dict(reversed(doubled(20).items())), [f"x{n}" for n in range(20, 15, -1)]),
        ({"a": {"b": LARGE, "c": "${.b}"}}, ["a"]),
        ({"a": LARGE, "b": "${a}"}, [""]),  # together
        ({"a": ["", LARGE], "b": "${a[1]}${a.1}"}, ["b"]),
        ({"hydra": {"x": LARGE}, "b": "${hydra:x}${hydra:x}"}, ["b"]),
        ({"a": LARGE, "b": "${new_sweep_dir:${a},${a}}"}, ["b"]),
        ({"b": "${now:" + "%c" * 10_000 + "}"}, ["b"]),
        ({1: "${x}${x}", "1": "a", "x": LARGE}, ["1"]),
    ],
)
def test_what_would_grow_too_large_is_found_without_resolving_it(values, keys):
    problems = unresolvable(values)
    assert [problem.key for problem in problems] == keys
    assert all("grows too large" in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("values", "key", "why"),
    [
        ({"a": "${a}"}, "a", "refers to itself"),
        ({"a": "${a}${a}"}, "a", "refers to itself"),
        ({"a": {"b": "${a}", "c": "${a}"}}, "a.b", "refers to itself"),
        ({"a": {"b": "${c}"}, "c": ["${a}"]}, "a.b", "refers to itself"),
        ({"a": {"b": "x"}, "c": "${a}", "d": "${c.b}"}, "d", "leads through another interpolation, c"),
        ({"a": ["x"], "b": "${a[00]}"}, "b", "by something else than its number"),
        ({f"a{n}": f"${{a{n + 1}}}" for n in range(100)}, "a73", "more than 25 keys that refer to each other"),
        ({f"a{n + 1}": f"${{a{n}}}" for n in range(100)}, "a26", "more than 25 keys that refer to each other"),
    ],
)
def test_what_could_not_be_resolved_is_found_without_resolving_it(values, key, why):
    messages = {problem.key: problem.message for problem in unresolvable(values)}
    assert why in messages[key]


@pytest.mark.parametrize(
    "text",
    [
        "${a}",
        "at ${.a.b[0].c}/${..x-y}",
        "${oc.env:HOME}",
        "${oc.env:STORAGE,sqlite:///a b.db}",
        "${oc.decode:${oc.env:EPOCHS,5}}",
        "${hydra:runtime.cwd}/${now:%Y-%m-%d}",
        "${new_sweep_dir:${sweep.dir},${output_dir}}",
        "$x {y} ${a}}",
    ],
)
def test_forms_that_are_taken(text):
    assert unreadable({"x": [text]}) == []


@pytest.mark.parametrize(
    "text",
    [
        "${",
        "${}",
        "${a",
        "${ a }",
        "${\u00e9}",
        "${a+b}",
        "${'a'}",
        "${a${b}}",
        "${a[${b}]}",
        "${oc.env:${a}}",
        "${oc.env:A,${b}}",
        "${oc.env:A,[[[1]]]}",
        "${oc.decode:${a}}",
        "${oc.decode:'\\${a}'}",
        "${oc.select:a}",
        "${oc.create:{a:1}}",
        "${oc.dict.values:a}",
        "${oc.deprecated:a}",
        "${eval:1}",
        "${a}" * 20_000 + "${",
        "${" * 20_000 + "a" + "}" * 20_000,
        "${oc.env:" * 20_000,
        "${new_sweep_dir:" * 20_000,
    ],
)
def test_forms_that_are_not_taken_are_refused_before_anything_parses_them(text, tmp_path, monkeypatch):
    monkeypatch.setattr("omegaconf.OmegaConf.load", lambda _: pytest.fail("OmegaConf has read it"))
    (tmp_path / "x.yaml").write_text(json.dumps({"a": 1, "b": {"c": [text]}}))
    with pytest.raises(ConfigError, match=r"b\.c\.0 = .* is no interpolation that is taken; there are .*x\.yaml"):
        OwnFiles("own", f"own://{tmp_path}").load_config("x")


@pytest.mark.parametrize(
    "typed",
    [("data.root=${data.root}${data.root}",), ("+b={a:${b},c:${b}}",), ("+b='${oc.decode:${a}}'",)],
)
def test_typed_ones_are_judged_too(typed):
    with pytest.raises(ConfigError, match=r"refers to itself|no interpolation that is taken"):
        compose_one(list(typed))
