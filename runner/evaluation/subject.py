"""Which images a run's weights are tried on, and where the result goes. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import CheckpointError, ConfigError, InvalidDatasetError, Problem
from runner.config.refusal import COMMAND_LINE
from runner.config.saved import load_saved, read_values
from runner.config.schema import Config
from runner.config.schema.calls import LAID_OVER
from runner.config.schema.data import DataConfig, FolderData
from runner.config.schema.effects import effect_of
from runner.data.fingerprint import content_of, differences, fingerprint
from runner.data.source import ImageSource
from runner.data.sources.labelled import open_class_folders, relabelled
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.run import contents

_SPLITS = ("train", "val", "test")
# Their change makes sense for a model that is trained already.
_GROUPS = LAID_OVER["evaluate"]
_IMAGES = frozenset({"data", "data.root", *(f"data.{split}" for split in _SPLITS)})


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated."""

    split: str
    data: dict[str, Any]
    """Where the images come from and how they are prepared."""
    weights: dict[str, Any]
    """Which weights."""
    differences: tuple[str, ...] = ()
    """What of the images of the run's own split is not as it was in training."""

    def to_json(self) -> dict[str, Any]:
        """As metrics.json has it."""
        told = {"split": self.split, "data": self.data, "weights": self.weights}
        return told | ({"differences_from_training": list(self.differences)} if self.differences else {})


@dataclass(frozen=True, kw_only=True)
class Images:
    """A split that is evaluated."""

    source: ImageSource
    notes: tuple[str, ...]
    data: dict[str, Any]
    """Where it comes from and how it is prepared, as metrics.json tells."""
    is_own: bool
    """Whether it is a split of the very data that the run was trained with."""
    differences: tuple[str, ...] = ()
    """What of such a split is not as it was in training."""


def load_config(run_dir: Path, overrides: Sequence[str]) -> Config:
    """The config that a run has saved as an evaluation takes it: `dist` as for a new run, whatever trained it.

    Another data set typed as a group keeps the preprocessing of the run; a folder typed for a run whose images came
    from elsewhere (`data.root=FOLDER` for digits) means data=folder. The run's data.exclude is for its own images only.

    Raises:
        CheckpointError: when the folder is no run folder.
        ConfigError: when what was typed is wrong, or of no use to an evaluation.
    """
    _refuse_useless(overrides)
    typed = _typed_keys(overrides)
    saved = read_values(run_dir)
    laid_over = list(overrides)
    if "dist" not in typed:
        laid_over.insert(0, "dist=default")
    is_bound = isinstance(saved.get("data"), dict) and saved["data"].get("source") in ("digits", "synthetic")
    if is_bound and "data" not in typed and typed & _IMAGES:
        laid_over.insert(0, "data=folder")
    config = load_saved(run_dir, laid_over, is_trained=True)
    if config.dist.launcher == "submitted":
        problem = "an evaluation is not submitted; start it inside of a job, with srun, or leave dist=slurm out"
        raise ConfigError([Problem(key="dist", value="slurm", has_value=True, message=problem, origin=COMMAND_LINE)])
    own = load_saved(run_dir, only_reads=True).data
    # What a model sees belongs to the model, wherever the images come from.
    kept = {name: value for name, value in own if _at_evaluation(name) == "model" and f"data.{name}" not in typed}
    data = resolve_paths(config.data.model_copy(update=kept))
    if "data.exclude" not in typed and _places(data) != _places(resolve_paths(own)):
        data = data.model_copy(update={"exclude": None})
    return config.model_copy(update={"data": data})


def _places(data: DataConfig) -> tuple[str | None, ...]:
    return data.source, data.root, data.train, data.val, data.test


def read_classes(run_dir: Path) -> tuple[str, ...]:
    """Class names of a run in index order.

    Raises:
        CheckpointError: when they are missing or damaged.
    """
    try:
        return contents.read_classes(run_dir / "classes.json")
    except FileNotFoundError as error:
        raise CheckpointError(f"{run_dir} has no classes.json: the run has not begun, or is damaged") from error


def open_images(
    config: Config,
    saved: Config,
    overrides: Sequence[str],
    classes: tuple[str, ...],
    split: str,
    *,
    record: dict[str, Any],
) -> Images:
    """Open the images to evaluate on.

    By default these are the run's own split. `data.val=FOLDER` (or test, train, as `split` says) is a folder of class
    folders. Of `data.root=FOLDER` it is FOLDER/<split> where there is one; where FOLDER holds no split at all, FOLDER
    itself is the folder of class folders. Classes are matched by their names.

    Args:
        config: as :func:`load_config` gives it.
        saved: the config of the run.
        overrides: what was typed.
        classes: of the model.
        split: train, val or test.
        record: run.json.

    Raises:
        InvalidDatasetError: there is no such split, or a class that the model does not know.
        RunnerError: as for a training.
    """
    data = config.data
    told = described(data)
    is_own = told == described(resolve_paths(saved.data))
    folder = None if is_own else _folder_of_classes(data, _typed_keys(overrides), split)
    if folder is not None:
        key, path = folder
        source, notes = open_class_folders(path, classes, data, key=key)
        return Images(source=source, notes=notes, data={**told, "folder": path}, is_own=False)
    if isinstance(data, FolderData) and data.train is None:
        raise InvalidDatasetError(f"there is no {split} split; give its folder with data.{split}=FOLDER")
    # A data set that was typed is the user's; what the config of the run says is read where it is, and not fetched.
    splits = open_splits(data, config.seed, may_fetch=bool({"data", "data.download"} & _typed_keys(overrides)))
    own_source: ImageSource | None = getattr(splits, split)
    if own_source is None:
        raise InvalidDatasetError(f"the data set has no {split} split; give one with data.{split}=…")
    place = f"data={data.source}" + (f", data.root = {data.root}" if data.root else "")
    source = relabelled(own_source, splits.classes, classes, place=place)
    changed = _differences(record, splits, split, data) if is_own else ()
    return Images(source=source, notes=splits.notes, data=told, is_own=is_own, differences=changed)


def _differences(record: dict[str, Any], splits: Splits, split: str, data: DataConfig) -> tuple[str, ...]:
    facts = record.get("data")
    if not isinstance(facts, dict):
        return ()
    if "content" in facts:
        return tuple(differences(facts["content"], content_of(splits, data.fingerprint, names=[split]), [split]))
    # An older run; one that was resumed may have gone on with other images.
    is_same = facts.get("fingerprint") in (None, fingerprint(splits)) or bool(record.get("resumes"))
    return () if is_same else ("the images have other names, labels or another order, or there are more or fewer",)


def described(data: DataConfig) -> dict[str, Any]:
    """What of a data config decides which images a model sees and how."""
    return {name: value for name, value in data.model_dump(mode="json").items() if _at_evaluation(name) != "nothing"}


def _at_evaluation(name: str) -> str:
    return effect_of(f"data.{name}").at_evaluation


def output_folder(run_dir: Path, images: Images, *, weights: str, split: str) -> Path:
    """Where the result goes unless a folder is given.

    `evaluation/` itself is for the best weights on the run's own validation split; anything else gets a folder in it
    that is named after the weights, the folder of the images and the split, as far as they differ from that.

    Args:
        run_dir: the run folder.
        images: what is evaluated on.
        weights: what tells them from others in a name; empty for the best.
        split: which split the images are.
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
    """The folder of class folders that was typed, with the key that names it; None where there is a whole data set."""
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


def _refuse_useless(overrides: Sequence[str]) -> None:
    problems = [
        Problem(
            key=key,
            message=f"belongs to the training; an evaluation takes keys of {', '.join(_GROUPS)}",
            origin=COMMAND_LINE,
        )
        for key in sorted(_typed_keys(overrides))
        if key.partition(".")[0] in Config.model_fields and key.partition(".")[0] not in _GROUPS
    ]
    if problems:
        raise ConfigError(problems)


def _typed_keys(overrides: Sequence[str]) -> set[str]:
    return {override.lstrip("+~").partition("=")[0] for override in overrides}
