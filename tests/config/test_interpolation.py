"""What comes from the environment is used, but neither saved nor shown."""

from __future__ import annotations

import json

import pytest

from runner.base.errors import ConfigError
from runner.config.compose import compose_one
from runner.config.interpolation import from_environment, passwords, resolved
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


def test_what_comes_from_the_environment_is_used_and_saved_as_it_was_written(tmp_path):
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
