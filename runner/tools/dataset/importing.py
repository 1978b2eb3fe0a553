"""Turns an input of any kind into a labelled image directory: [split/]class/image."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.console import tracked
from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError, OutputError
from runner.base.files import named_write_errors, sha256_of, write_json
from runner.base.reasons import reason_of
from runner.base.stop import StopRequest
from runner.base.user_paths import scheme_of
from runner.config.schema.calls.of_datasets import DatasetImportCall
from runner.data.images.decode import decode_image
from runner.data.sources.index import IMAGE_EXTENSIONS, NO_CLASS, LeftOut, path_text, printable_path
from runner.tools.dataset.annotations import refuse_special
from runner.tools.dataset.download import downloaded
from runner.tools.dataset.layout import class_folders, output_paths
from runner.tools.dataset.parallel import in_parallel, num_workers
from runner.tools.dataset.sources import Source, UnreadableFileError, open_source
from runner.tools.dataset.staging import full_path, new_folder, refuse_existing, refuse_full_disk, refuse_within

_COMMAND = "dataset import"
_MAX_EXAMPLES = 20


@dataclass(frozen=True)
class _Written:
    """An image that was written to the output."""

    name: str
    """Its path in the input."""
    path: str
    """Its full path in the output."""
    reason: str | None
    """Why it can't be read, if copying it failed."""


def import_images(call: DatasetImportCall, stop: StopRequest) -> dict[str, Any]:
    """Import a data set; the output folder is created by one rename once it is complete.

    Returns:
        The content of `OUTPUT.import.json`.

    Raises:
        InvalidDatasetError: the input can't be imported.
        NotLabeledDatasetError: the input has no labels.
        ConfigError: a column is missing.
        DownloadError: the input is an address, and can't be downloaded.
        OutputError: the output exists, or can't be written.
        StoppedOnRequest: a signal asked for it.
    """
    output = full_path(call.output)
    report_file = output.with_name(f"{output.name}.import.json")
    refuse_existing(output)
    _refuse_foreign_report(report_file)
    if scheme_of(call.input) is not None:
        with downloaded(call, output, stop) as archive:
            return _imported(
                call, archive.file, report_file, stop, {"input": archive.address, "sha256": archive.sha256}
            )
    source_path = full_path(call.input)
    refuse_within(output, source_path)
    origin = {"input": path_text(str(source_path)), "sha256": _checked_sha256(call, source_path)}
    return _imported(call, source_path, report_file, stop, origin)


def _checked_sha256(call: DatasetImportCall, path: Path) -> str | None:
    """That of a local file, where one was typed."""
    if call.sha256 is None:
        return None
    refuse_special(path)
    if path.is_dir():
        raise InvalidDatasetError(f"input = {path}: is a folder, which has no SHA-256; leave sha256 out")
    try:
        sha256 = sha256_of(path)
    except OSError as error:
        raise InvalidDatasetError(f"input = {path}: can't be read: {reason_of(error)}") from error
    if sha256 != call.sha256:
        raise InvalidDatasetError(f"input = {path}: its SHA-256 is {sha256}, not {call.sha256} as sha256 says")
    return sha256


def _imported(
    call: DatasetImportCall, source_path: Path, report_file: Path, stop: StopRequest, origin: Mapping[str, str | None]
) -> dict[str, Any]:
    """Import what lies on this machine; `origin` is what the report says of where it is from."""
    output = full_path(call.output)
    source = open_source(call, source_path)
    _check_images(source, source_path)
    places = source.layout.places
    folders = class_folders(place.label for place in places.values())
    paths = output_paths(places, folders)
    refuse_full_disk(output, source.num_bytes)
    with new_folder(output) as folder:
        unreadable = _fill(folder, source, paths, call, stop)
        if len(unreadable) == len(places):
            raise InvalidDatasetError(
                f"input = {source_path}: none of its {len(places):,} images can be decoded; the first: "
                f"{printable_path(unreadable[0]['path'])}: {unreadable[0]['reason']}"
            )
    report = _report(call, source, origin, folders=folders, paths=paths, unreadable=unreadable)
    write_json(report_file, report)
    return report


def _refuse_foreign_report(file: Path) -> None:
    """Only the report of an earlier import may be replaced."""
    if not os.path.lexists(file):
        return
    try:
        is_ours = json.loads(file.read_bytes()).get("command") == _COMMAND
    except (OSError, ValueError, AttributeError):
        is_ours = False
    if not is_ours:
        raise OutputError(f"{file}: already exists, and is no report of an import; choose another output")


def _check_images(source: Source, path: Path) -> None:
    if source.layout.places:
        return
    left_out = _left_out(source)
    suffix = "; left out: " + ", ".join(map(str, left_out)) if left_out else ""
    if NO_CLASS in source.layout.left_out:
        raise NotLabeledDatasetError(
            f"input = {path}: holds images, but no class folders: without them no image has a label{suffix}"
        )
    raise InvalidDatasetError(
        f"input = {path}: no image was found{suffix}; images are files that end in {', '.join(IMAGE_EXTENSIONS)}"
    )


def _fill(
    folder: Path, source: Source, paths: Mapping[str, str], call: DatasetImportCall, stop: StopRequest
) -> list[dict[str, str]]:
    """Write all images, then remove those that can't be decoded.

    Returns:
        Path in the input and reason of each removed image.
    """
    unreadable: list[dict[str, str]] = []
    written = _write_all(folder, source, paths, call, stop)
    decoded = in_parallel(_reason_unreadable, written, num_workers(call.workers))
    for image, reason in tracked(decoded, label="importing", unit="image", total=len(paths)):
        if reason is not None:
            Path(image.path).unlink(missing_ok=True)
            unreadable.append({"path": image.name, "reason": reason})
    for parent in {folder / Path(path).parent for path in paths.values()}:
        if not any(parent.iterdir()):
            parent.rmdir()  # training refuses class folders without an image
    return sorted(unreadable, key=lambda item: item["path"])


def _write_all(
    folder: Path, source: Source, paths: Mapping[str, str], call: DatasetImportCall, stop: StopRequest
) -> Iterator[_Written]:
    output = full_path(call.output)
    for parent in {Path(path).parent for path in paths.values()}:
        with named_write_errors(output):
            (folder / parent).mkdir(parents=True, exist_ok=True)
    for name, chunks in source.contents():
        target = folder / paths[name]
        reason = None
        try:
            with named_write_errors(output), target.open("xb") as file:
                for chunk in chunks:
                    stop.raise_if_received("nothing was written")
                    file.write(chunk)
        except UnreadableFileError as error:
            reason = str(error)
        yield _Written(name, str(target), reason)


def _reason_unreadable(image: _Written) -> str | None:
    if image.reason is not None:
        return image.reason
    try:
        decode_image(image.path)
    except InvalidDatasetError as error:
        return str(error).removeprefix(f"{printable_path(image.path)}: ")
    return None


def _left_out(source: Source) -> list[LeftOut]:
    return [
        LeftOut(reason, len(names), tuple(path_text(name) for name in sorted(names)[:_MAX_EXAMPLES]))
        for reason, names in sorted(source.layout.left_out.items())
    ]


def _report(
    call: DatasetImportCall,
    source: Source,
    origin: Mapping[str, str | None],
    *,
    folders: Mapping[str, str],
    paths: Mapping[str, str],
    unreadable: list[dict[str, str]],
) -> dict[str, Any]:
    bad = {item["path"] for item in unreadable}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, place in source.layout.places.items():
        counts[place.split][folders[place.label]] += name not in bad
    notes = [
        f"no image of the class {label} could be read{f' in {split}' if split else ''}, so it has no folder there"
        for split, own in sorted(counts.items())
        for label, count in sorted(own.items())
        if count == 0
    ]
    if len(folders) == 1:
        notes.insert(
            0, f"only one class, {next(iter(folders))}, but a classifier needs at least 2; are the images labelled?"
        )
    return {
        "command": _COMMAND,
        **origin,
        "format": source.format,
        "output": path_text(str(full_path(call.output))),
        "num_images": len(paths) - len(bad),
        "num_per_class": {split or "all": dict(sorted(own.items())) for split, own in sorted(counts.items())},
        "unreadable": [{key: path_text(value) for key, value in item.items()} for item in unreadable],
        "left_out": {item.reason: {"count": item.count, "examples": item.examples} for item in _left_out(source)},
        "renamed_classes": {label: folder for label, folder in folders.items() if label != folder},
        "num_renamed_files": sum(
            Path(path).name != Path(source.layout.places[name].name).name for name, path in paths.items()
        ),
        "notes": [*source.notes, *notes],
        "options": call.model_dump(mode="json", exclude={"input", "output", "root", "workers"}),
    }
