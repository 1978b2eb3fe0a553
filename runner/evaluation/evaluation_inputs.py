"""Which images a run is evaluated on, and the folder that the result is written to. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import ConfigError, InvalidDatasetError, Problem
from runner.config.compose import compose_one
from runner.config.hydra_errors import COMMAND_LINE
from runner.config.saved import laid_over, load_saved, read_values
from runner.config.schema import Config
from runner.config.schema.calls import LAID_OVER
from runner.config.schema.calls.of_trained import TrainedCall
from runner.config.schema.checks.effects import effect_of
from runner.config.schema.data import DataConfig, FolderData
from runner.data.fingerprint import content_differences, content_of, fingerprint
from runner.data.source import ImageSource
from runner.data.sources.labelled import open_class_folders, relabelled
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.run.package import ModelCard

_SPLITS = ("train", "val", "test")
# The config groups whose keys can be overridden for a model that is trained already.
_GROUPS = LAID_OVER["evaluate"]
_IMAGES = frozenset({"data", "data.root", *(f"data.{split}" for split in _SPLITS)})


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """The images and the weights of one evaluation, as metrics.json names them."""

    split: str
    data: dict[str, Any]
    """Where the images come from and how they are preprocessed; see :func:`data_entry`."""
    weights: dict[str, Any]
    """See :meth:`runner.evaluation.weights.ChosenWeights.to_json`."""
    differences: tuple[str, ...] = ()
    """How the images of the run's own split differ from those it was trained with."""

    def to_json(self) -> dict[str, Any]:
        """The first entries of metrics.json."""
        entries = {"split": self.split, "data": self.data, "weights": self.weights}
        return entries | ({"differences_from_training": list(self.differences)} if self.differences else {})


@dataclass(frozen=True, kw_only=True)
class EvaluationImages:
    """The images of an evaluation."""

    source: ImageSource
    notes: tuple[str, ...]
    """Sentences for the log."""
    data: dict[str, Any]
    """The entry `data` of metrics.json."""
    is_own: bool
    """Whether they are a split of the data set that the run was trained with."""
    differences: tuple[str, ...] = ()
    """How such a split differs from what it was in training."""


def load_evaluation_config(run_dir: Path, overrides: Sequence[str]) -> Config:
    """The saved config of a run, changed by the overrides of an evaluation; `dist` has its defaults.

    Another data set (`data=…`) keeps the preprocessing of the run. For a run on data=digits or data=synthetic a path
    (`data.root=FOLDER`) implies data=folder. The run's data.exclude applies to the run's own images only.

    Raises:
        CheckpointError: when the folder is no run folder.
        ConfigError: when an override is wrong, or belongs to the training.
    """
    typed = _typed_of_evaluation(overrides)
    saved = read_values(run_dir)
    laid_over = list(overrides)
    if "dist" not in typed:
        laid_over.insert(0, "dist=default")
    has_no_paths = isinstance(saved.get("data"), dict) and saved["data"].get("source") in ("digits", "synthetic")
    if has_no_paths and "data" not in typed and typed & _IMAGES:
        laid_over.insert(0, "data=folder")
    config = load_saved(run_dir, laid_over, is_trained=True)
    _refuse_submission(config)
    own = load_saved(run_dir, only_reads=True).data
    # The preprocessing belongs to the model, wherever the images come from.
    kept = {name: value for name, value in own if _at_evaluation(name) == "model" and f"data.{name}" not in typed}
    data = resolve_paths(config.data.model_copy(update=kept))
    if "data.exclude" not in typed and _places(data) != _places(resolve_paths(own)):
        data = data.model_copy(update={"exclude": None})
    return config.model_copy(update={"data": data})


def load_package_config(card: ModelCard, overrides: Sequence[str]) -> Config:
    """The config of an evaluation of a package alone: the defaults, changed by overrides, with the package's model.

    A path (`data.val=FOLDER`) implies data=folder. The preprocessing is the package's, unless its keys are typed.

    Raises:
        ConfigError: when an override is wrong or belongs to the training, or when none names images.
    """
    typed = _typed_of_evaluation(overrides)
    if not typed & _IMAGES:
        message = "a package alone has no images: give data.val=FOLDER, a folder of class folders, or data=NAME"
        raise ConfigError([Problem(key="data.val", message=message, origin=COMMAND_LINE)])
    defaults = compose_one(())
    assert defaults is not None, "no flag is given"
    chosen = [] if "data" in typed else ["data=folder"]
    config = laid_over(defaults.config.to_save(), [*chosen, *overrides], is_trained=True)
    preprocessing = card.preprocessing
    _refuse_submission(config)
    kept = {
        "channels": preprocessing.channels,
        "bit_depth": preprocessing.bit_depth,
        "eval_image_size": preprocessing.image_size,
        "resize": preprocessing.resize,
        "fill": preprocessing.fill,
        "eval_transforms": preprocessing.transforms,
        "normalize": preprocessing.normalize,
        "follow_weights": False,  # what they bring along is in the package already
    }
    of_package = {name: value for name, value in kept.items() if f"data.{name}" not in typed}
    data = resolve_paths(config.data.model_copy(update=of_package))
    return config.model_copy(update={"data": data, "model": card.architecture})


def check_choice(call: TrainedCall, card: ModelCard) -> None:
    """Refuse a checkpoint, or a kind of weights, that a package alone does not have.

    Raises:
        ConfigError: naming the key.
    """
    if call.checkpoint != "best" or call.weights not in ("auto", card.weights_kind):
        key = "weights" if call.checkpoint == "best" else "checkpoint"
        message = f"a package has the best weights only, {card.weights_kind}; run=DIR has the others"
        raise ConfigError([Problem(key=key, value=getattr(call, key), has_value=True, message=message)])


def _typed_of_evaluation(overrides: Sequence[str]) -> set[str]:
    """The keys of overrides, none of which belongs to the training."""
    typed = _typed_keys(overrides)
    problems = [
        Problem(
            key=key,
            message=f"belongs to the training; an evaluation takes keys of {', '.join(_GROUPS)}",
            origin=COMMAND_LINE,
        )
        for key in sorted(typed)
        if key.partition(".")[0] in Config.model_fields and key.partition(".")[0] not in _GROUPS
    ]
    if problems:
        raise ConfigError(problems)
    return typed


def _refuse_submission(config: Config) -> None:
    if config.dist.launcher == "submitted":
        problem = "an evaluation is not submitted; start it inside of a job, with srun, or leave dist=slurm out"
        raise ConfigError([Problem(key="dist", value="slurm", has_value=True, message=problem, origin=COMMAND_LINE)])


def _places(data: DataConfig) -> tuple[str | None, ...]:
    return data.source, data.root, data.train, data.val, data.test


def open_images(
    config: Config,
    saved: Config | None,
    overrides: Sequence[str],
    classes: tuple[str, ...],
    split: str,
    *,
    record: dict[str, Any],
) -> EvaluationImages:
    """Open the images to evaluate on.

    By default these are the run's own split. `data.val=FOLDER` (or `data.test`, `data.train`, for that split) names a
    folder of class folders. With `data.root=FOLDER` it is FOLDER/<split> where that exists; where FOLDER holds no split
    at all, FOLDER itself is the folder of class folders. Classes are matched by their names.

    Args:
        config: the result of :func:`load_evaluation_config` or :func:`load_package_config`.
        saved: the config of the run; None where there is a package alone.
        overrides: those of the command line.
        classes: class names of the model in index order.
        split: train, val or test.
        record: the content of run.json; empty where there is a package alone.

    Raises:
        InvalidDatasetError: there is no such split, or it has a class that the model does not have.
        RunnerError: the data set can't be opened; see :func:`runner.data.splits.open_splits`.
    """
    data = config.data
    entry = data_entry(data)
    is_own = saved is not None and entry == data_entry(resolve_paths(saved.data))
    folder = None if is_own else _folder_of_classes(data, _typed_keys(overrides), split)
    if folder is not None:
        key, path = folder
        source, notes = open_class_folders(path, classes, data, key=key)
        return EvaluationImages(source=source, notes=notes, data={**entry, "folder": path}, is_own=False)
    if isinstance(data, FolderData) and data.train is None:
        raise InvalidDatasetError(f"there is no {split} split; give its folder with data.{split}=FOLDER")
    # Only what the command line asks for is downloaded: the saved config may be somebody else's.
    splits = open_splits(data, config.seed, may_fetch=bool({"data", "data.download"} & _typed_keys(overrides)))
    own_source: ImageSource | None = getattr(splits, split)
    if own_source is None:
        raise InvalidDatasetError(f"the data set has no {split} split; give one with data.{split}=…")
    place = f"data={data.source}" + (f", data.root = {data.root}" if data.root else "")
    source = relabelled(own_source, splits.classes, classes, place=place)
    changed = _differences(record, splits, split, data) if is_own else ()
    return EvaluationImages(source=source, notes=splits.notes, data=entry, is_own=is_own, differences=changed)


def _differences(record: dict[str, Any], splits: Splits, split: str, data: DataConfig) -> tuple[str, ...]:
    facts = record.get("data")
    if not isinstance(facts, dict):
        return ()
    if "content" in facts:
        return tuple(
            content_differences(facts["content"], content_of(splits, data.fingerprint, names=[split]), [split])
        )
    # A run of an older version; if it was resumed, its fingerprint may be that of the images before.
    is_same = facts.get("fingerprint") in (None, fingerprint(splits)) or bool(record.get("resumes"))
    return () if is_same else ("the images have other names, labels or another order, or there are more or fewer",)


def data_entry(data: DataConfig) -> dict[str, Any]:
    """The entry `data` of metrics.json: the keys that decide which images a model sees, and how they are prepared."""
    return {name: value for name, value in data.model_dump(mode="json").items() if _at_evaluation(name) != "nothing"}


def _at_evaluation(name: str) -> str:
    return effect_of(f"data.{name}").at_evaluation


def output_folder(run_dir: Path, images: EvaluationImages, *, weights: str, split: str) -> Path:
    """The folder that the result is written to unless the command line names one.

    The best weights on the run's own validation split are evaluated into `evaluation/` itself; any other evaluation
    into a folder within it, named after the weights, the folder of the images and the split, as far as they differ.

    Args:
        run_dir: the run folder.
        images: the images of the evaluation.
        weights: :attr:`runner.evaluation.weights.ChosenWeights.label`, empty for the best.
        split: train, val or test.
    """
    parts = [weights] if weights else []
    if not images.is_own:
        place = images.data.get("folder") or images.data.get("root") or images.data["source"]
        path = Path(place)
        parts.append(path.parent.name if path.name in _SPLITS and path.parent.name else path.name or "root")
    if split != "val":
        parts.append(split)
    return run_dir / "evaluation" / "-".join(parts)


def _folder_of_classes(data: DataConfig, typed: Collection[str], split: str) -> tuple[str, str] | None:
    """A folder of class folders and the key that names it; None where the config names a whole data set."""
    if not isinstance(data, FolderData):
        return None
    given = getattr(data, split)
    if f"data.{split}" in typed and given is not None:
        return f"data.{split}", given
    if data.root is None or not Path(data.root).is_dir():
        return None
    if (Path(data.root) / split).is_dir():
        return f"data.{split}", str(Path(data.root) / split)
    if any((Path(data.root) / name).is_dir() for name in _SPLITS):
        return None
    return "data.root", data.root


def _typed_keys(overrides: Sequence[str]) -> set[str]:
    return {override.lstrip("+~").partition("=")[0] for override in overrides}
