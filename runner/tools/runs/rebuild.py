"""Writes what rebuilds the environment of a run: requirements, a Dockerfile, a devcontainer, and the code, where kept.

What a received run says of its packages is data: of each line only a name and a version are taken, and nothing is
installed here.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.files import as_json, check_new_file, named_write_errors, publish, sync_file, temporary_beside
from runner.base.untrusted import UntrustedFileError, printable, read_text, unreadable
from runner.run.run_folder import read_record
from runner.run.snapshot import SourceFile, read_snapshot, write_source
from runner.tools.runs.past import read_small

# Names by PyPI's rules; versions by PEP 440, as far as characters go.
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,99}[A-Za-z0-9])?)==([0-9][0-9A-Za-z.!+_-]{0,63})")
_PYTHON = re.compile(r"3\.[0-9]{1,2}\.[0-9]{1,2}(?:(?:a|b|rc)[0-9]{1,2})?")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_OWN = "runner"


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What was written about the environment of a run."""

    python: str | None
    pins: tuple[str, ...]
    """name==version of each package that an index has."""
    local: Mapping[str, str]
    """Other packages: their version and where they came from."""
    has_own_source: bool
    """Whether the folder `source` has the runner's code."""
    notes: tuple[str, ...]
    """What the reader has to do, in sentences."""


def write_environment(run_dir: Path, output: Path, *, base: str | None = None) -> Rebuilt:
    """Write what rebuilds the environment of a run into a new folder, which appears when it is complete.

    Args:
        run_dir: the run folder, without links out of it.
        output: must not exist, or be an empty folder.
        base: the image of the Dockerfile; None means that of the run's Python.

    Raises:
        CheckpointError: a file of the run is damaged.
        ConfigError: the run does not say which Python it had, and there is no base.
        OutputError: the output exists already or can't be written.
    """
    if not output.is_dir() or any(output.iterdir()):
        check_new_file(output)
    record = read_record(run_dir)
    files = read_snapshot(run_dir, record)
    rebuilt = _rebuilt(run_dir, record, files)
    if base is None and rebuilt.python is None:
        message = "the run does not say which Python it had; name an image with that Python"
        raise ConfigError([Problem(key="base", message=message, hint="such as base=python:3.13-slim")])
    texts = {
        "requirements.txt": _requirements(run_dir, record, rebuilt).encode(),
        "Dockerfile": _dockerfile(rebuilt, base or f"python:{rebuilt.python}-slim").encode(),
        ".devcontainer/devcontainer.json": as_json(_devcontainer(run_dir)),
    }
    if (patch := read_small(run_dir / "source.patch")) is not None:
        texts["source.patch"] = patch
    with named_write_errors(output):
        temporary = temporary_beside(output)
        try:
            for name, content in texts.items():
                file = temporary / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                sync_file(file)
            if files is not None:
                write_source(files, temporary / "source")
            publish(temporary, output)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return rebuilt


def _rebuilt(run_dir: Path, record: Mapping[str, Any], files: Mapping[str, SourceFile] | None) -> Rebuilt:
    pins = dict(_pins(run_dir / "environment.txt"))
    origins = {name: str(origin) for name, origin in (record.get("local_packages") or {}).items()}
    # Of a run that has not recorded it: no index has this runner under its name.
    origins.setdefault(_OWN, "folder")
    local = {name: f"{pins.pop(name)}, {_origin(origins[name])}" for name in sorted(origins) if name in pins}
    python = (record.get("versions") or {}).get("python", "")
    has_own_source = _project_of(files or {}) == _OWN
    notes = []
    if not has_own_source:
        notes.append("the runner itself is not in it: requirements.txt says how to get its code")
    if others := [name for name in local if name != _OWN]:
        notes.append(f"to be installed by hand, as no index has them: {', '.join(others)}")
    return Rebuilt(
        python=python if _PYTHON.fullmatch(python) else None,
        pins=tuple(f"{name}=={version}" for name, version in pins.items()),
        local=local,
        has_own_source=has_own_source,
        notes=tuple(notes),
    )


def _pins(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = read_text(file)
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    seen: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _PIN.fullmatch(line)
        if match is None:
            raise CheckpointError(
                f"{file} is damaged: line {number} is {printable(line)[:80]!r}, and not NAME==VERSION of a package"
            )
        name, version = match.groups()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if seen.setdefault(key, version) != version:
            raise CheckpointError(
                f"{file}: {name} was installed in two versions, {seen[key]} and {version}, of which Python took one "
                "and no installer makes both; remove the line of the other from the file"
            )
        yield name, version


def _origin(text: str) -> str:
    """Where a package came from, as :func:`runner.run.installed.local_packages` says it."""
    kind, _, commit = text.partition(" ")
    if kind == "commit" and _COMMIT.fullmatch(commit):
        return f"commit {commit} of its repository"
    return {"editable folder": "installed from a folder, editable", "folder": "installed from a folder"}.get(
        text, "installed from a file"
    )


def _project_of(files: Mapping[str, SourceFile]) -> str | None:
    """The name of the Python project at the top of a snapshot."""
    file = files.get("pyproject.toml")
    if file is None or file.is_link:
        return None
    try:
        project = tomllib.loads(file.content.decode()).get("project")
    except (ValueError, RecursionError):
        return None
    return project.get("name") if isinstance(project, dict) else None


def _requirements(run_dir: Path, record: Mapping[str, Any], rebuilt: Rebuilt) -> str:
    versions = record.get("versions") or {}
    torch = printable(str(versions.get("torch", "unknown")))
    lines = [
        f"The packages of the run {printable(str(run_dir))}, with Python {rebuilt.python or 'of an unknown version'}.",
        "Of a run that somebody else sent, read the names first: what is installed is run.",
        "",
        "    python -m venv .venv && .venv/bin/pip install --no-deps -r requirements.txt",
        "",
        "--no-deps, as the list is complete. It fits the kind of machine that the run was made on. torch was",
        f"{torch}: what stands behind a + is its build, and builds other than the index's own come from",
        'the index that PyTorch\'s page "Get started" names.',
        "",
        *_about_local(record, rebuilt),
    ]
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return head + "".join(f"{pin}\n" for pin in rebuilt.pins)


def _about_local(record: Mapping[str, Any], rebuilt: Rebuilt) -> Iterator[str]:
    """What a reader has to do about packages that no index has."""
    if rebuilt.has_own_source:
        yield "The runner comes from the run's snapshot; on the package index, `runner` is somebody else's project:"
        yield "    .venv/bin/pip install --no-deps ./source"
    else:
        commit = (record.get("git") or {}).get("commit") or ""
        yield "The runner is missing here; on the package index, `runner` is somebody else's project. Put its code"
        yield "into the folder runner-source: a clone of its repository"
        if _COMMIT.fullmatch(commit):
            yield f"at the commit of the run, if that was made there (git checkout {commit}), with its uncommitted"
            yield "changes (git apply ../source.patch, where there is one), and"
        yield "    .venv/bin/pip install --no-deps ./runner-source"
        yield "A later run with run.snapshot=true keeps the code."
    for name, said in rebuilt.local.items():
        yield f"{'It was' if name == _OWN else name + ' has to be installed by hand; it was'} {said}."


def _dockerfile(rebuilt: Rebuilt, base: str) -> str:
    own = "source" if rebuilt.has_own_source else "runner-source"
    missing = (
        "" if rebuilt.has_own_source else f"# Put the runner's code into {own}/ first: requirements.txt says how.\n"
    )
    return f"""\
# docker build --tag run .   With your own package mirror: --secret id=pip,src=pip.conf
ARG BASE={base}
FROM $BASE
# The commit of an experiment is part of its record.
RUN command -v git >/dev/null || {{ apt-get update --quiet=2 \\
    && apt-get install --yes --quiet=2 --no-install-recommends git && rm -rf /var/lib/apt/lists/*; }}
RUN python3 -m venv /opt/runner
ENV PATH=/opt/runner/bin:$PATH
COPY requirements.txt /opt/runner/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \\
    pip install --quiet --no-cache-dir --no-deps --requirement /opt/runner/requirements.txt
{missing}COPY {own} /opt/runner/source
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \\
    pip install --quiet --no-cache-dir --no-deps /opt/runner/source
# Any user may run it (`--user`): a home that all can write.
RUN mkdir --mode=1777 /home/runner && mkdir --parents /work
ENV HOME=/home/runner USER=runner
WORKDIR /work
ENTRYPOINT ["runner"]
"""


def _devcontainer(run_dir: Path) -> dict[str, Any]:
    # The entry point of the image ends by itself; the editor's own command keeps the container.
    return {
        "name": f"environment of {printable(run_dir.name)}",
        "build": {"dockerfile": "../Dockerfile", "context": ".."},
        "overrideCommand": True,
    }
