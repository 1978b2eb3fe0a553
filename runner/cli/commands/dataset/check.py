"""`python -m runner dataset check [overrides]`: decode every image and report damaged files, duplicates and leaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.base.console import show
from runner.base.errors import EXIT_DONE, InvalidDatasetError
from runner.base.stop import StopRequest
from runner.cli.call import read_call
from runner.config.compose import compose_one
from runner.config.schema.calls.of_datasets import DatasetCheckCall
from runner.config.schema.data import DataConfig
from runner.data.sources.index import name_list

_MAX_CLASSES = 10
_MAX_EXAMPLES = 5
# A channel of a smaller standard deviation counts as constant: a step of 16 bits is 1.5e-5.
_SMALLEST_STD = 1e-6
_TITLES = {
    "unreadable": "unreadable or truncated",
    "same_content_in_several_splits": "same content in several splits (leakage)",
    "same_content_with_several_labels": "same content with different labels",
    "same_content_within_a_split": "same content within a split",
    "suspicious_size": "suspicious width or height",
    "odd_class_names": "odd class names",
}


def run(argv: list[str]) -> int:
    """Check the data set of an experiment.

    Raises:
        ConfigError: what was typed is wrong.
        InvalidDatasetError: the data set can't be opened; with strict, something was found.
        OutputError: the report can't be written.
    """
    call, overrides = read_call("dataset check", DatasetCheckCall, argv)
    job = compose_one(overrides)
    if job is None:
        return EXIT_DONE
    from runner.tools.dataset.check import check_dataset  # noqa: PLC0415 - not needed to report a mistake in the config

    with StopRequest() as stop:
        checked = check_dataset(job.config, call.output, stop, wants_statistics=call.statistics)
    show("\n".join(_lines(checked.report)))
    if call.statistics:
        show("\n".join(_statistics(checked.report, job.config.data)))
    show(f"report: {checked.folder / 'check.json'}")
    if num_quarantined := checked.report["num_quarantined"]:
        show(f"to leave out {num_quarantined:,} of them: data.exclude={checked.folder / 'quarantine.csv'}")
    if call.strict and checked.num_findings:
        raise InvalidDatasetError(
            f"strict: {checked.num_findings:,} findings, "
            + ", ".join(f"{count:,} × {_TITLES[kind]}" for kind, count in _found(checked.report))
            + f"; see {checked.folder / 'check.json'}"
        )
    return EXIT_DONE


def _statistics(report: dict[str, Any], data: DataConfig) -> Iterator[str]:
    """Mean and standard deviation of each channel, as YAML that an experiment takes."""
    found = report.get("statistics")
    if found is None:
        yield "statistics: none, as no training image can be read"
        return
    yield (
        f"# {found['num_images']:,} training images after data.eval_transforms, with data.channels={data.channels} and "
        f"data.bit_depth={data.bit_depth}"
    )
    constant = [str(number) for number, std in enumerate(found["std"], 1) if std < _SMALLEST_STD]
    if constant:
        yield f"# constant in channel {', '.join(constant)}, which is only centred: its std is 0"
    stds = [1.0 if std < _SMALLEST_STD else std for std in found["std"]]
    yield "data:\n  normalize:"
    for name, values in (("mean", found["mean"]), ("std", stds)):
        yield f"    {name}: [{', '.join(f'{value:.6f}' for value in values)}]"


def _found(report: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return ((kind, count) for kind, count in report["num_findings"].items() if count)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    counts = ", ".join(f"{name} {count:,}" for name, count in report["num_images"].items())
    speed = f"{report['decoding_seconds']:.1f} s, {report['images_per_second']:,.0f} images/s"
    yield f"checked {sum(report['num_images'].values()):,} images in {speed}: {counts}"
    yield from (f"  {_TITLES[kind]:<42} {count:>9,}" for kind, count in report["num_findings"].items())
    yield from _examples(report)
    yield from _classes(report)
    for name, own in report["size"].items():
        yield f"{name}: {own['min']:,} … {own['max']:,} px, median {own['median']:,g}"
    yield "modes: " + ", ".join(f"{mode} {count:,}" for mode, count in report["modes"].items())
    yield f"turned upright by EXIF: {report['num_rotated_by_exif']:,}"
    yield from (f"note: {note}" for note in report["notes"])


def _examples(report: dict[str, Any]) -> Iterator[str]:
    for kind, count in _found(report):
        yield f"{_TITLES[kind]}:"
        for item in report[kind][:_MAX_EXAMPLES]:
            if "names" in item:
                yield f"  {' and '.join(map(ascii, item['names']))} {item['reason']}"
            elif isinstance(item, list):
                yield "  " + " = ".join(f"{one['path']} ({one['label']})" for one in item[:_MAX_EXAMPLES])
            else:
                size = f"{item['width']}×{item['height']}, " if "width" in item else ""
                yield f"  {item['path']}: {size}{item['reason']}"
        if count > _MAX_EXAMPLES:
            yield f"  … {count:,} in all, see check.json"


def _classes(report: dict[str, Any]) -> Iterator[str]:
    per_class = sorted(report["num_per_class"].items(), key=lambda item: -item[1]["train"])
    if report["train_imbalance"] is not None:
        ratio = f"{report['train_imbalance']:.3g} times as many training images as the smallest"
        yield f"{len(per_class):,} classes; the largest has {ratio}"
    half = _MAX_CLASSES // 2
    shown_ones = per_class if len(per_class) <= _MAX_CLASSES else [*per_class[:half], *per_class[-half:]]
    for label, own in shown_ones:
        yield f"  {label}: " + ", ".join(f"{name} {count:,}" for name, count in own.items())
    if len(per_class) > _MAX_CLASSES:
        yield f"  (the {half} largest and the {half} smallest)"
    empty = [label for label, own in per_class if own["train"] == 0]
    if empty:
        yield f"classes without a training image: {name_list(empty)}"
