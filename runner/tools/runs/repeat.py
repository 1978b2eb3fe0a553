"""Finds what may make a repeated run differ from the original."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from runner.base.untrusted import printable
from runner.data.fingerprint import content_differences, content_of, fingerprint
from runner.run import installed, provenance
from runner.run.snapshot import SourceFile, differing_files, folders_of_runs, read_snapshot
from runner.tools.runs.past import PastRun, data_of, read_small

if TYPE_CHECKING:
    from runner.launch.preflight import Ready

_SHOWN_FILES = 5


def reasons_to_differ(original: PastRun, ready: Ready) -> list[str]:
    """Sentences about code, environment and data that differ from those of the original run.

    Args:
        original: the run to repeat.
        ready: the new run, after preflight on this machine.
    """
    return [
        *_code(original, ready),
        *_environment(original, ready),
        *_data(original, ready),
    ]


def _code(original: PastRun, ready: Ready) -> Iterator[str]:
    now = provenance.git_state(Path.cwd(), without=folders_of_runs(ready.config))
    files = read_snapshot(original.path, original.record)
    if files is not None:  # what it says of each file is more than commits and patches do
        yield from _other_files(original, files)
        return
    git = original.record.get("git") or {}
    commit, patch_file = git.get("commit"), original.path / "source.patch"
    if commit != now.commit:
        here = f"this folder is at {now.commit}" if now.commit else "this folder is in no git repository"
        made = f"the run was made at commit {commit}" if commit else "the run was made outside of git"
        yield f"the code differs: {made}, {here}" + (f"; git checkout {commit} goes there" if commit else "")
    patch = read_small(patch_file) or b""
    if patch != now.patch.encode(errors="surrogateescape"):
        where = f"had those of {patch_file}" if patch else "had none"
        yield f"uncommitted changes differ: the run {where}, this folder has {'others' if now.patch else 'none'}"


def _other_files(original: PastRun, files: Mapping[str, SourceFile]) -> Iterator[str]:
    """Files of the run's snapshot that are other ones here; its code is compared, and never run."""
    here = Path.cwd()
    top = provenance.top_of_repository(here)
    within = PurePosixPath(original.record["snapshot"].get("folder", "."))
    is_at_same_place = not within.is_absolute() and within.parts == here.parts[len(here.parts) - len(within.parts) :]
    beside = here.parents[len(within.parts) - 1] if within.parts and is_at_same_place else here
    found = min((differing_files(files, root) for root in {top or beside, beside}), key=len)
    if found:
        shown = ", ".join(map(printable, found[:_SHOWN_FILES])) + (", …" if len(found) > _SHOWN_FILES else "")
        yield (
            f"the code differs: {len(found):,} of {len(files):,} files of the run's snapshot are other ones here or "
            f"missing: {shown}; `runs environment run={original.path} output=FOLDER` writes them all to FOLDER/source"
        )


def _environment(original: PastRun, ready: Ready) -> Iterator[str]:
    from runner.dist.device import choose_device, choose_precision, describe_device  # noqa: PLC0415 - torch, only when asked

    before = original.record.get("versions") or {}
    for name, version in _versions().items():
        if name in before and before[name] != version:
            yield f"{name} differs: the run had {before[name]}, here is {version}"
    if ready.plan.world_size != original.record.get("world_size", ready.plan.world_size):
        yield (
            f"the number of processes differs: the run had {original.record['world_size']}, this one will have "
            f"{ready.plan.world_size}"
        )
    if ready.plan.mode == "submitted":
        return  # only known on the machines that will train
    device = choose_device(ready.config.trainer)
    if describe_device(device) != original.record.get("device"):
        yield f"the device differs: the run had {original.record.get('device')}, here is {describe_device(device)}"
    precision = choose_precision(ready.config.trainer, device).name
    if precision != _numerics(original).get("precision", precision):
        yield f"the precision differs: the run had {_numerics(original)['precision']}, this one will have {precision}"


def _data(original: PastRun, ready: Ready) -> Iterator[str]:
    before = data_of(original)
    if before["fingerprint"] is not None and before["fingerprint"] != fingerprint(ready.splits):
        yield "the data set differs: other images, or other classes, than the run was made with"
    elif before.get("content"):
        content = content_of(ready.splits, ready.config.data.fingerprint)
        yield from (
            f"the data set differs: {said}" for said in content_differences(before["content"], content, tuple(content))
        )


def _numerics(original: PastRun) -> dict[str, Any]:
    return original.state.get("numerics") or {}


def _versions() -> dict[str, str]:
    import torch  # noqa: PLC0415

    return installed.versions() | {"torch": str(torch.__version__)}
