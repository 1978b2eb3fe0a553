"""What a container image needs, as far as it can be seen without building one; tests/cluster/test_image.py runs one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
STEPS = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
LET_IN = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
COPIED = {name for word, rest in STEPS if word == "COPY" and "--from" not in rest for name in shlex.split(rest)[:-1]}
ARGUMENTS = {rest.partition("=")[0]: rest.partition("=")[2] for word, rest in STEPS if word == "ARG"}


def test_what_is_copied_is_there_and_nothing_else_is_let_in():
    assert IGNORED[0] == "*"  # .git, .venv, outputs and whatever a user keeps beside
    assert COPIED == LET_IN
    assert all((ROOT / name).exists() for name in COPIED)


def test_the_wheel_has_all_that_it_is_made_of():
    project = PROJECT["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    assert needed | set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= COPIED


def test_the_container_is_the_command():
    steps = dict(STEPS)
    (script,) = PROJECT["project"]["scripts"]
    # A list: of a string /bin/sh would be the first process, which passes no SIGTERM on.
    assert steps["ENTRYPOINT"] == f'["{script}"]'
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", steps["USER"])


def test_optional_parts_are_those_of_the_project():
    assert set(ARGUMENTS["EXTRAS"].split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_the_page_names_each_argument_with_its_default():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+) \|", PAGE, re.MULTILINE))
    assert {name: value.strip("`").replace("empty", "") for name, value in rows.items()} == ARGUMENTS


def test_nothing_names_a_registry():
    # Neither the index of packages nor that of images: both are the user's choice.
    texts = [DOCKERFILE, (ROOT / ".ci" / "build-image").read_text(), PAGE]
    assert not [
        found for text in texts for found in re.findall(r"\w+\.(?:io|org|com)\b", text) if "nvidia" not in found
    ]


def test_no_page_has_a_recipe_for_what_was_never_tried():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert not re.search(
            r"kubeflow|PyTorchJob|registry\.example", page.read_text(encoding="utf-8"), re.IGNORECASE
        ), page


@pytest.fixture
def builders(tmp_path):
    """Programs called docker, podman and buildah; the one that is asked to build writes down how."""

    def made(**exit_codes: int) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "programs"
        programs.mkdir()
        for name, exit_code in exit_codes.items():
            script = f'#!/bin/sh\n[ "$1" != info ] || exit {exit_code}\necho "{name} $*"\n'
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        for name in ("bash", "dirname", "env"):
            (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
        return subprocess.run(
            [ROOT / ".ci" / "build-image", "--build-arg", "DEVICE=cpu"],
            env={"PATH": os.fspath(programs)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return made


@pytest.mark.parametrize(
    ("exit_codes", "taken"), [({"docker": 0, "podman": 0}, "docker"), ({"docker": 1, "buildah": 0}, "buildah")]
)
def test_the_first_builder_that_works_builds(builders, exit_codes, taken):
    done = builders(**exit_codes)
    assert (done.returncode, done.stdout) == (0, f"{taken} build --tag runner --build-arg DEVICE=cpu .\n"), done.stderr


def test_no_builder_is_an_error_with_a_name(builders):
    done = builders(docker=1)
    assert done.returncode == 2
    assert "NoImageBuilder" in done.stderr
    assert "docker is installed, but `docker info` fails" in done.stderr
    assert "podman is not installed" in done.stderr
