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
from runner.base.files import named_write_errors, write_json
from runner.base.stop import StopRequest
from runner.config.schema.calls import DatasetImportCall
from runner.data.images.decode import decode_image
from runner.data.sources.index import IMAGE_EXTENSIONS, NO_CLASS, LeftOut, shown, told
from runner.tools.dataset.layout import class_folders, output_paths
from runner.tools.dataset.parallel import in_parallel, num_workers
from runner.tools.dataset.sources import Source, UnreadableFileError, open_source
from runner.tools.dataset.staging import full_path, new_folder, refuse_existing, refuse_full_disk, refuse_within

_COMMAND = "dataset import"
_MAX_EXAMPLES = 20


@dataclass(frozen=True)
class _Written:
    """An image that stands in the output."""

    name: str
    """In the input."""
    path: str
    """Full path."""
    reason: str | None
    """Why it can't be read, if that is known already."""


def import_images(call: DatasetImportCall, stop: StopRequest) -> dict[str, Any]:
    """Import a data set; the output appears only when it is complete.

    Returns:
        The report, as it is written to `OUTPUT.import.json`.

    Raises:
        InvalidDatasetError: the input can't be imported.
        NotLabeledDatasetError: nothing tells the classes of its images.
        ConfigError: a column is not there.
        OutputError: the output exists, or can't be written.
        StoppedOnRequest: a signal asked for it.
    """
    source_path, output = full_path(call.input), full_path(call.output)
    report_file = output.with_name(f"{output.name}.import.json")
    refuse_existing(output)
    _refuse_foreign_report(report_file)
    refuse_within(output, source_path)
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
                f"{told(unreadable[0]['path'])}: {unreadable[0]['reason']}"
            )
    report = _report(call, source, folders=folders, paths=paths, unreadable=unreadable)
    write_json(report_file, report)
    return report


def _refuse_foreign_report(file: Path) -> None:
    """A report of an earlier import whose folder is gone may be replaced, and nothing else."""
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
    told = "; left out: " + ", ".join(map(str, left_out)) if left_out else ""
    if NO_CLASS in source.layout.left_out:
        raise NotLabeledDatasetError(
            f"input = {path}: holds images, but no class folders: without them no image has a label{told}"
        )
    raise InvalidDatasetError(
        f"input = {path}: no image was found{told}; images are files that end in {', '.join(IMAGE_EXTENSIONS)}"
    )


def _fill(
    folder: Path, source: Source, paths: Mapping[str, str], call: DatasetImportCall, stop: StopRequest
) -> list[dict[str, str]]:
    """Write all images, and take away again what can't be decoded.

    Returns:
        Path in the input and reason of each that was taken away.
    """
    unreadable: list[dict[str, str]] = []
    written = _write_all(folder, source, paths, call, stop)
    decoded = in_parallel(_reason_unreadable, written, num_workers(call.workers))
    for image, reason in tracked(decoded, label="importing", unit="image", total=len(paths)):
        if reason is not None:
            Path(image.path).unlink(missing_ok=True)
            unreadable.append({"path": image.name, "reason": reason})
    _remove_empty(folder, paths)
    return sorted(unreadable, key=lambda item: item["path"])


def _remove_empty(folder: Path, paths: Mapping[str, str]) -> None:
    """Training refuses class folders without an image."""
    for parent in {folder / Path(path).parent for path in paths.values()}:
        if not any(parent.iterdir()):
            parent.rmdir()


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
                    stop.refuse_to_go_on("nothing was written")
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
        return str(error).removeprefix(f"{told(image.path)}: ")
    return None


def _single_class_note(folders: Mapping[str, str]) -> list[str]:
    if len(folders) > 1:
        return []
    return [f"only one class, {next(iter(folders))}, but a classifier needs at least 2; are the images labelled?"]


def _unread_class_notes(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"no image of the class {label} could be read{f' in {split}' if split else ''}, so it has no folder there"
        for split, own in sorted(counts.items())
        for label, count in sorted(own.items())
        if count == 0
    ]


def _left_out(source: Source) -> list[LeftOut]:
    return [
        LeftOut(reason, len(names), tuple(shown(name) for name in sorted(names)[:_MAX_EXAMPLES]))
        for reason, names in sorted(source.layout.left_out.items())
    ]


def _report(
    call: DatasetImportCall,
    source: Source,
    *,
    folders: Mapping[str, str],
    paths: Mapping[str, str],
    unreadable: list[dict[str, str]],
) -> dict[str, Any]:
    bad = {item["path"] for item in unreadable}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, place in source.layout.places.items():
        counts[place.split][folders[place.label]] += name not in bad
    return {
        "command": _COMMAND,
        "input": shown(str(full_path(call.input))),
        "format": source.format,
        "output": shown(str(full_path(call.output))),
        "num_images": len(paths) - len(bad),
        "num_per_class": {split or "all": dict(sorted(own.items())) for split, own in sorted(counts.items())},
        "unreadable": [{key: shown(value) for key, value in item.items()} for item in unreadable],
        "left_out": {item.reason: {"count": item.count, "examples": item.examples} for item in _left_out(source)},
        "renamed_classes": {label: folder for label, folder in folders.items() if label != folder},
        "num_renamed_files": sum(
            Path(path).name != Path(source.layout.places[name].name).name for name, path in paths.items()
        ),
        "notes": [*source.notes, *_single_class_note(folders), *_unread_class_notes(counts)],
        "options": call.model_dump(mode="json", exclude={"input", "output", "root", "workers"}),
    }
