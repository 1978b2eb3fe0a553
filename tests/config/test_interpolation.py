"""Interpolations are a closed list of forms of bounded size; values of the environment are neither saved nor shown."""

from __future__ import annotations

import json

import pytest

from runner.base.errors import ConfigError
from runner.config.compose import compose_one
from runner.config.config_folder import ConfigFolder
from runner.config.interpolation import from_environment, passwords, resolved, unreadable_interpolations, unresolvable
from runner.config.saved import load_saved

SECRET = "s3cret-t0ken"


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("MY_SECRET", SECRET)
    monkeypatch.setenv("MY_STORAGE", f"postgresql://anna:{SECRET}@host/db")


def test_references_are_spelt_out_and_others_left_alone():
    values = {"a": "${oc.env:X}", "b": {"c": "at ${a}", "d": "${.c}!", "e": "${f}"}, "f": 3, "g": ["${b.c}"]}
    assert from_environment(values) == {
        "a": "${oc.env:X}",
        "b.c": "at ${oc.env:X}",
        "b.d": "at ${oc.env:X}!",
        "g.0": "at ${oc.env:X}",
    }


def test_a_typed_password_is_refused_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        compose_one([f"sweep.storage='postgresql://anna:{SECRET}@host/db'"])
    assert "sweep.storage" in str(caught.value)
    assert "oc.env" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert passwords({"a": ["${oc.env:X}", "sqlite:///x.db"]}) == []


@pytest.mark.parametrize("address", ["anna:{}@host/x", "anna:a/{}@host/x", "host/x?password={}", "anna:a@{}@host?t={}"])
def test_a_typed_password_is_one_mistake_by_its_own_key(address):
    with pytest.raises(ConfigError) as caught:
        compose_one([f"model.weights='https://{address.replace('{}', SECRET)}'"])
    assert [problem.key for problem in caught.value.problems] == ["model.weights"]
    assert "holds a password" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_flag_that_shows_the_config_shows_no_password(capfd):
    with pytest.raises(ConfigError, match="holds a password"):
        compose_one(["--cfg", "job", f"model.weights=https://anna:{SECRET}@host/x"])
    assert SECRET not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["nope", "job.nope", "job.num", "job.name.x"])
def test_a_key_that_hydra_does_not_have_becomes_no_null(name):
    with pytest.raises(ConfigError) as caught:
        compose_one([f"data.root=${{hydra:{name}}}"])
    assert [problem.key for problem in caught.value.problems] == ["data.root"]
    assert f"refers to hydra.{name}, which has no value" in str(caught.value)


def test_a_key_of_hydras_own_is_read():
    job = compose_one(["output_dir=${hydra:job.name}"])
    assert job is not None
    assert job.config.output_dir == "runner"


def test_values_of_the_environment_are_used_and_saved_as_they_are_written(tmp_path):
    job = compose_one(["sweep.storage=${oc.env:MY_STORAGE}", "dist.slurm.account=${oc.env:MY_SECRET}"])
    assert job is not None
    assert job.config.dist.slurm.account == SECRET
    saved = job.config.to_yaml()
    assert SECRET not in saved + json.dumps(job.config.to_save())
    (tmp_path / "config.yaml").write_text(saved)
    again = load_saved(tmp_path, ["dist.slurm.partition=${oc.env:MY_SECRET}"])
    assert again.dist.slurm.account == SECRET
    assert again.sweep.storage is None, "a saved one is connected with only where it is typed again"
    assert SECRET not in again.to_yaml()
    assert again.to_save()["dist"]["slurm"]["partition"] == "${oc.env:MY_SECRET}"


@pytest.mark.parametrize(
    "override",
    [
        "trainer.epochs=${oc.env:MY_SECRET}",
        "model.name=${oc.env:MY_SECRET}",
        "dist.rendezvous=${oc.env:MY_SECRET}",
        "trainer.device=x${oc.env:MY_SECRET}",
    ],
)
def test_a_refused_value_of_the_environment_is_not_shown(override):
    with pytest.raises(ConfigError) as caught:
        compose_one([override])
    assert SECRET not in str(caught.value)
    assert "${oc.env:MY_SECRET}" in str(caught.value)


def test_a_number_of_the_environment_is_saved_since_it_decides_about_the_result(monkeypatch):
    monkeypatch.setenv("EPOCHS", "7")
    job = compose_one(["trainer.epochs='${oc.decode:${oc.env:EPOCHS}}'"])
    assert job is not None
    assert job.config.to_save()["trainer"]["epochs"] == 7


def test_a_saved_config_does_not_resolve_bombs():
    bomb = {"x0": "a" * 8, **{f"x{n + 1}": f"${{x{n}}}${{x{n}}}" for n in range(60)}}
    with pytest.raises(ConfigError, match="grows too large"):
        resolved(bomb)


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
def test_too_large_interpolations_are_found_without_resolving_them(values, keys):
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
def test_unresolvable_interpolations_are_found_without_resolving_them(values, key, why):
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
def test_allowed_forms(text):
    assert unreadable_interpolations({"x": [text]}) == []


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
def test_other_forms_are_refused_before_omegaconf_parses_them(text, tmp_path, monkeypatch):
    monkeypatch.setattr("omegaconf.OmegaConf.load", lambda _: pytest.fail("OmegaConf has read it"))
    (tmp_path / "x.yaml").write_text(json.dumps({"a": 1, "b": {"c": [text]}}))
    with pytest.raises(ConfigError, match=r"b\.c\.0 = .* is no allowed interpolation; there are .*x\.yaml"):
        ConfigFolder("own", f"own://{tmp_path}").load_config("x")


@pytest.mark.parametrize(
    "typed",
    [("data.root=${data.root}${data.root}",), ("+b={a:${b},c:${b}}",), ("+b='${oc.decode:${a}}'",)],
)
def test_typed_ones_are_judged_too(typed):
    with pytest.raises(ConfigError, match=r"refers to itself|no allowed interpolation"):
        compose_one(list(typed))
