"""`python -m runner export run=DIR|model=… format=onnx [data. overrides]`: write a model for other programs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, ConfigError, MissingPackageError, Problem, how_to_install
from runner.base.files import check_new_file
from runner.base.user_paths import refuse_outside_links, typed_path
from runner.cli.call import read_call
from runner.config.saved import load_saved
from runner.config.schema import Config
from runner.config.schema.calls import LAID_OVER
from runner.config.schema.calls.of_trained import ExportCall
from runner.config.schema.checks.effects import changes
from runner.data.source import ImageSource
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits
from runner.evaluation.evaluation_inputs import check_choice, load_package_config, open_images
from runner.run.package import read_package
from runner.run.run_folder import check_writable, read_record
from runner.tools.export import NAMES, Format, description_of
from runner.tools.export.triton import MODEL_FILE, check_model_name
from runner.tools.registry.resolve import folder_of

if TYPE_CHECKING:
    from runner.training.assemble_trained import TrainedModel

_PACKAGES_OF_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is exported."""

    load: Callable[[], TrainedModel]
    images: ImageSource
    """On which both models are compared."""
    output: Path
    origin: dict[str, Any]


def run(argv: list[str]) -> int:
    """Export the model of a run, or a packaged model.

    Raises:
        CheckpointError: the folder is no run folder, or the weights are missing or damaged.
        ConfigError: an override is wrong, or would change the model.
        ExportError: the model can't be exported, or the file computes other outputs than PyTorch.
        MissingPackageError: the extra `export` is not installed.
        OutputError: the output exists, or can't be written.
        InvalidDatasetError: the data of the run is not found; data.root=FOLDER says where it is.
        RegistryError: the registry has no such version, or its files are not those that were registered.
    """
    call, overrides = read_call("export", ExportCall, argv)
    place = folder_of(call.run, call.model, call.registry.uri)
    subject = _of_run(call, overrides, place) if call.model is None else _of_package(call, overrides, place)
    # Torch is imported only after all checks that need none of it.
    from runner.tools.export.export import ExportRequest, export  # noqa: PLC0415

    output = subject.output
    request = ExportRequest(
        format=call.format,
        output=output,
        include_preprocessing=call.include_preprocessing,
        min_agreement=call.min_agreement,
        origin=subject.origin,
    )
    agreement = export(subject.load(), subject.images, request)
    if agreement.num_unreadable:
        LOGGER.warning("%d validation images can't be read and were left out", agreement.num_unreadable)
    exported = output / MODEL_FILE if call.format == "triton" else output
    LOGGER.info("exported    %s (%.1f MB)", output, exported.stat().st_size / 1e6)
    LOGGER.info(
        "checked     %s validation images: top-1 agreement %.2f%%, largest difference %.2g where outputs reach %.2g",
        f"{agreement.count:,}",
        agreement.top1_agreement * 100,
        agreement.largest_difference,
        agreement.largest_output,
    )
    LOGGER.info("described   %s", description_of(output))
    return EXIT_DONE


def _of_run(call: ExportCall, overrides: list[str], run_dir: Path) -> _Subject:
    refuse_outside_links(run_dir)
    record = read_record(run_dir)
    saved = load_saved(run_dir, only_reads=True)
    config = _with_data(saved, run_dir, overrides)
    if call.format in ("onnx", "triton"):
        _require(call.format, _PACKAGES_OF_ONNX)
    output = _output(call, run_dir)
    splits = open_splits(resolve_paths(config.data), config.seed, may_fetch=False)

    def load() -> TrainedModel:
        from runner.training.assemble_trained import load_trained  # noqa: PLC0415 - imports torch

        return load_trained(run_dir, saved, call.checkpoint, call.weights)

    return _Subject(load=load, images=splits.val, output=output, origin=_origin(run_dir, record))


def _of_package(call: ExportCall, overrides: list[str], place: Path) -> _Subject:
    package = read_package(place)
    check_choice(call, package.card)
    if call.output is None:
        raise ConfigError([Problem(key="output", message="a package alone needs a file to write: output=FILE")])
    _refuse_changes(override.lstrip("+~").partition("=")[0] for override in overrides)
    config = load_package_config(package.card, overrides)
    if call.format in ("onnx", "triton"):
        _require(call.format, _PACKAGES_OF_ONNX)
    output = _output(call, place)
    images = open_images(config, None, overrides, package.card.classes, "val", record={})

    def load() -> TrainedModel:
        from runner.training.assemble_trained import trained_of_package  # noqa: PLC0415 - imports torch

        return trained_of_package(package)

    origin, best = package.card.origin, package.card.best
    record = {"git": origin.get("git"), "best": best}
    run_dir = Path(str(origin.get("run") or "unknown"))
    return _Subject(load=load, images=images.source, output=output, origin=_origin(run_dir, record))


def _refuse_changes(keys: Iterable[str]) -> None:
    """Refuse keys of the config that would change the model."""
    # The preprocessing is part of the model; the path of the images is not.
    others = [key for key in keys if key not in LAID_OVER["export"]]
    if others:
        message = f"the model is exported as it was trained; only {', '.join(LAID_OVER['export'])} can be changed"
        raise ConfigError([Problem(key=key, message=message) for key in others])


def _with_data(saved: Config, run_dir: Path, overrides: list[str]) -> Config:
    wanted = load_saved(run_dir, overrides, only_reads=True)
    found = changes(saved.model_dump(mode="json"), wanted.model_dump(mode="json"))
    _refuse_changes(key for key, _, _ in found)
    return wanted


def _require(format_: Format, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"format={format_} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"{how_to_install('export')}; format=torch_export needs no other package"
        )


def _output(call: ExportCall, run_dir: Path) -> Path:
    """The output file; only the default one's folder may be missing."""
    if call.output is not None:
        output = typed_path(call.output, "output").absolute()
        if call.format == "triton":
            check_model_name(output)
    else:
        output = run_dir / "export" / NAMES[call.format]
        if not output.parent.exists():
            check_writable(output.parent)
            return output
    for file in (output, description_of(output)):
        check_new_file(file)
    return output


def _origin(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    # The last two parts are the run's name; the folders above are those of this machine.
    git = record.get("git") or {}
    return {"run": "/".join(run_dir.parts[-2:]), "git_commit": git.get("commit") or "", "best": record.get("best")}
