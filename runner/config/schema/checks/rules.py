"""Rules between fields, checked on composed values, so that an invalid field does not hide other mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.base.errors import Problem
from runner.config.schema.checks.parts import LOSSES, TRANSFORMS, part_problems
from runner.config.schema.model import WEIGHTS_FILE_SUFFIXES, WEIGHTS_OF, is_weights_file
from runner.config.schema.trainer import LOSS_NAMES
from runner.config.schema.transforms import FIXED_NAMES, NEEDS_COLOURS, RANDOM_NAMES


class Values:
    """Reads composed values by full key; a value of a wrong type, which the schema reports, reads as None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever the user wrote
        """The value under a dotted key; None where it is missing."""
        node: Any = self._values
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return None
            node = node[part]
        return node

    def number(self, key: str) -> float | None:
        """The value if it is a number (not a bool)."""
        value = self.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """The value if it is a text."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def problem(self, key: str, message: str) -> Problem:
        """A problem of this key, with the value that was received."""
        return Problem(key=key, value=self.get(key), has_value=True, message=message)


def _warmup_is_shorter_than_training(values: Values) -> Iterator[Problem]:
    warmup, epochs = values.number("schedule.warmup_epochs"), values.number("trainer.epochs")
    if warmup is not None and epochs is not None and warmup > 0 and epochs > 0 and warmup >= epochs:
        yield values.problem(
            "schedule.warmup_epochs",
            f"must be less than trainer.epochs = {epochs:g}, or the peak learning rate is never reached",
        )


def _points_lie_within_training(values: Values) -> Iterator[Problem]:
    points, epochs = values.get("schedule.points"), values.number("trainer.epochs")
    for number, point in enumerate(points if isinstance(points, list) else []):
        epoch = point[0] if isinstance(point, list) and point else None
        if epochs is not None and isinstance(epoch, int | float) and epoch > epochs:
            yield Problem(
                key=f"schedule.points.{number}",
                value=point,
                has_value=True,
                message=f"is never reached: trainer.epochs = {epochs:g}",
                hint='the epoch of a last point may be "${trainer.epochs}"',
            )


def _early_images_are_smaller(values: Values) -> Iterator[Problem]:
    entries, epochs = _entries(values, "data.progressive_resizing"), values.number("trainer.epochs")
    lengths = [entry["epochs"] for entry in entries if isinstance(entry.get("epochs"), int)]
    if epochs is not None and entries and sum(lengths) >= epochs:
        message = f"covers {sum(lengths)} epochs; at least the last of trainer.epochs = {epochs:g} has data.image_size"
        yield values.problem("data.progressive_resizing", message)
    full = _sides(values.get("data.image_size"))
    for number, entry in enumerate(entries):
        sides = _sides(entry.get("image_size"))
        if full and sides and any(side > most for side, most in zip(sides, full, strict=True)):
            yield Problem(
                key=f"data.progressive_resizing.{number}.image_size",
                value=entry["image_size"],
                has_value=True,
                message=f"must not be larger than data.image_size = {values.get('data.image_size')}, by which memory "
                "is judged",
            )


def _images_are_repeated_in_one_way(values: Values) -> Iterator[Problem]:
    if values.get("data.balance") == "sampler" and (values.number("data.repeats") or 1) > 1:
        yield values.problem("data.repeats", "must be 1 with data.balance=sampler, which repeats images by itself")


def _sides(size: Any) -> tuple[float, ...]:  # noqa: ANN401 - whatever the user wrote
    """Height and width; nothing of a value that is no size."""
    sides = size if isinstance(size, list) else [size, size]
    return tuple(sides) if len(sides) == 2 and all(isinstance(side, int) for side in sides) else ()


def _something_is_trained_besides_the_head(values: Values) -> Iterator[Problem]:
    frozen, epochs = values.number("trainer.freeze_backbone_epochs"), values.number("trainer.epochs")
    from_scratch = values.get("model.weights") is None and not _entries(values, "trainer.unfreeze")
    if from_scratch and frozen is not None and epochs is not None and 0 < epochs <= frozen:
        yield values.problem(
            "trainer.freeze_backbone_epochs",
            f"must be less than trainer.epochs = {epochs:g} when model.weights is null, "
            "or only a head on random features is trained",
        )


def _unfreezing_ends_with_the_freeze(values: Values) -> Iterator[Problem]:
    frozen = values.number("trainer.freeze_backbone_epochs")
    for number, entry in enumerate(_entries(values, "trainer.unfreeze")):
        after = entry.get("after_epochs")
        if frozen is not None and isinstance(after, int) and after >= frozen:
            yield Problem(
                key=f"trainer.unfreeze.{number}.after_epochs",
                value=after,
                has_value=True,
                message=f"must be less than trainer.freeze_backbone_epochs = {frozen:g}, after which everything learns",
            )


def _precision_exists_on_the_device(values: Values) -> Iterator[Problem]:
    if values.get("trainer.precision") == "fp16" and values.get("trainer.device") == "cpu":
        yield values.problem(
            "trainer.precision",
            "a CPU does not train in fp16 (trainer.device = cpu); use bf16 or fp32",
        )


def _backend_fits_the_device(values: Values) -> Iterator[Problem]:
    device = values.get("trainer.device")
    if values.get("dist.backend") == "nccl" and device in ("cpu", "mps"):
        yield values.problem("dist.backend", f"needs CUDA, but trainer.device = {device}; use gloo")


def _node_rank_is_below_nodes(values: Values) -> Iterator[Problem]:
    rank, nodes = values.number("dist.node_rank"), values.number("dist.nodes")
    if rank is not None and nodes is not None and rank >= nodes >= 1:
        yield values.problem("dist.node_rank", f"must be less than dist.nodes = {nodes:g} (counted from 0)")


def _nesterov_needs_momentum(values: Values) -> Iterator[Problem]:
    if values.get("optimizer.nesterov") is True and values.number("optimizer.momentum") == 0:
        yield values.problem("optimizer.nesterov", "Nesterov's form needs optimizer.momentum above 0; set it to false")


def _groups_choose_in_one_way(values: Values) -> Iterator[Problem]:
    for number, entry in enumerate(_entries(values, "optimizer.groups")):
        if (entry.get("pattern") is None) == (entry.get("part") is None):
            message = "needs either a pattern of parameter names, or a part: head, backbone or norm_and_bias"
            yield Problem(key=f"optimizer.groups.{number}", value=dict(entry), has_value=True, message=message)


def _csv_has_a_list(values: Values) -> Iterator[Problem]:
    if values.get("data.source") == "csv" and not values.get("data.train"):
        yield values.problem("data.train", "data=csv needs the list of training images: data.train=FILE.csv")


def _columns_differ(values: Values) -> Iterator[Problem]:
    path, label = values.text("data.path_column"), values.text("data.label_column")
    if values.get("data.source") == "csv" and path is not None and path == label:
        yield values.problem("data.label_column", "must be another column than data.path_column")


def _evaluation_draws_nothing(values: Values) -> Iterator[Problem]:
    for number, entry in enumerate(_entries(values, "data.eval_transforms")):
        if entry.get("name") in RANDOM_NAMES:
            yield Problem(
                key=f"data.eval_transforms.{number}.name",
                value=entry["name"],
                has_value=True,
                message="is random, but evaluation and the packaged model must be deterministic; "
                f"allowed: {', '.join(FIXED_NAMES)}",
                hint="move it to data.train_transforms",
            )


def _parts_are_installed(values: Values) -> Iterator[Problem]:
    for key in ("data.train_transforms", "data.eval_transforms"):
        for number, entry in enumerate(_entries(values, key)):
            place, part, arguments = f"{key}.{number}", entry.get("part"), entry.get("arguments", {})
            if entry.get("name") == "custom" and isinstance(part, str) and isinstance(arguments, Mapping):
                names = {"name_key": f"{place}.part", "arguments_key": f"{place}.arguments"}
                yield from part_problems(TRANSFORMS, part, arguments, **names)


def _the_loss_is_installed(values: Values) -> Iterator[Problem]:
    loss, arguments = values.text("trainer.loss"), values.get("trainer.loss_arguments")
    if loss in LOSS_NAMES and arguments:
        yield values.problem("trainer.loss_arguments", f"{loss} has none; choose a loss of your own, or use {{}}")
    elif loss is not None and loss not in LOSS_NAMES and isinstance(arguments, Mapping):
        names = {"name_key": "trainer.loss", "arguments_key": "trainer.loss_arguments"}
        yield from part_problems(LOSSES, loss, arguments, **names)


def _a_threshold_needs_binary_targets(values: Values) -> Iterator[Problem]:
    if values.number("trainer.target_threshold") is not None and values.get("trainer.loss") != "binary_cross_entropy":
        yield values.problem("trainer.target_threshold", "needs trainer.loss=binary_cross_entropy")


def _normalize_comes_last(values: Values) -> Iterator[Problem]:
    lists = {key: _entries(values, key) for key in ("data.train_transforms", "data.eval_transforms")}
    places = {key: [entry.get("name") == "normalize" for entry in entries] for key, entries in lists.items()}
    for key, is_normalize in places.items():
        for number in (number for number, found in enumerate(is_normalize[:-1]) if found):
            yield Problem(
                key=f"{key}.{number}.name",
                value="normalize",
                has_value=True,
                message="must be the last entry: it is done on the device, after all others",
            )
    (train, evaluation), (in_train, in_evaluation) = lists.values(), (is_last[-1:] for is_last in places.values())
    if [True] in (in_train, in_evaluation) and not (in_train == in_evaluation and train[-1] == evaluation[-1]):
        yield Problem(
            key="data.eval_transforms",
            message="normalize must end both lists, data.train_transforms too, with the same values: a model must "
            "always see pixels on the same scale",
            hint="or write it once, as data.normalize",
        )


def _normalize_fits_the_channels(values: Values) -> Iterator[Problem]:
    channels = values.number("data.channels")
    sections: dict[str, Any] = {"data.normalize": values.get("data.normalize")}
    for key in ("data.train_transforms", "data.eval_transforms"):
        sections |= {f"{key}.{number}": entry for number, entry in enumerate(_entries(values, key))}
    sections = {key: found for key, found in sections.items() if isinstance(found, Mapping)}
    for key, found in sections.items():
        if channels is None or (key != "data.normalize" and found.get("name") != "normalize"):
            continue
        for name in ("mean", "std"):
            numbers = found.get(name)
            if isinstance(numbers, list) and len(numbers) != channels:
                same = "[" + ", ".join(["0.5"] * int(channels)) + "]"
                yield Problem(
                    key=f"{key}.{name}",
                    value=numbers,
                    has_value=True,
                    message=f"must be a list of {channels:g}, one for each of data.channels",
                    hint=f"give such values; python -m runner dataset check statistics=true data.channels={channels:g} "
                    f"data.normalize.mean={same} data.normalize.std={same} … prints those of the training images",
                )


def _sixteen_bits_are_grey(values: Values) -> Iterator[Problem]:
    if values.get("data.bit_depth") == 16 and values.get("data.channels") in (3, 4):
        yield values.problem(
            "data.bit_depth",
            f"needs data.channels=1, not {values.get('data.channels')}: colours of 16 bits are read as 8 bits",
        )


def _four_channels_are_no_colours(values: Values) -> Iterator[Problem]:
    if values.get("data.channels") != 4:
        return
    for key in ("data.train_transforms", "data.eval_transforms"):
        for number, entry in enumerate(_entries(values, key)):
            if entry.get("name") in NEEDS_COLOURS:
                yield Problem(
                    key=f"{key}.{number}.name",
                    value=entry["name"],
                    has_value=True,
                    message="works on 1 or 3 channels, but data.channels = 4",
                    hint="leave it out; what moves pixels takes 4 channels",
                )


def _entries(values: Values, key: str) -> list[Mapping[str, Any]]:
    found = values.get(key)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def _folder_has_a_place(values: Values) -> Iterator[Problem]:
    if values.get("data.source") == "folder" and not (values.get("data.root") or values.get("data.train")):
        yield values.problem(
            "data.root", "data=folder needs the folder of the data set: data.root=FOLDER (or data.train=FOLDER)"
        )


def _digits_bring_their_own(values: Values) -> Iterator[Problem]:
    # A saved config has full paths in the cache folder, data.train among them; without it the user has typed a root.
    root = values.text("data.root")
    if values.get("data.source") == "digits" and root is not None and values.get("data.train") is None:
        yield values.problem(
            "data.root", f"data=digits brings its own images; for a folder of yours type data=folder data.root={root}"
        )


def _batchnorm_needs_two_images(values: Values) -> Iterator[Problem]:
    if values.get("model.family") in ("resnet", "densenet") and values.number("data.batch_size") == 1:
        yield values.problem(
            "data.batch_size", "must be at least 2: the BatchNorm of this model can't learn from single images"
        )


def _weights_belong_to_the_architecture(values: Values) -> Iterator[Problem]:
    weights, name, family = (values.text(f"model.{key}") for key in ("weights", "name", "family"))
    if weights is None or name is None or is_weights_file(weights):
        return
    suffixes = ", ".join(WEIGHTS_FILE_SUFFIXES)
    match = re.fullmatch(r"(?:(\w+)_Weights\.)?([A-Z0-9_]+)", weights)
    if family == "custom":
        yield values.problem("model.weights", f"a custom model starts from null or from a file that ends in {suffixes}")
    elif family == "timm":
        if weights != "pretrained":
            yield values.problem(
                "model.weights", f"with model=timm it is null, pretrained, or a file that ends in {suffixes}"
            )
    elif match is None:
        yield values.problem(
            "model.weights", f"is neither null, nor a name such as IMAGENET1K_V1, nor a file that ends in {suffixes}"
        )
    else:
        owner, version = match.groups()
        allowed = WEIGHTS_OF.get(name)
        if owner is not None and owner.lower() != name.lower():
            yield values.problem("model.weights", f"these are weights of {owner.lower()}, but model.name = {name!r}")
        elif allowed is not None and version not in (*allowed, "DEFAULT"):
            yield values.problem(
                "model.weights", f"torchvision has none of this name for {name}; allowed: {', '.join(allowed)}, DEFAULT"
            )


def _several_metrics_fit(values: Values) -> Iterator[Problem]:
    metric, direction = values.get("sweep.metric"), values.get("sweep.direction")
    several = metric if isinstance(metric, list) else [metric]
    if isinstance(metric, list) and values.get("sweep.pruner") not in (None, "none") and len(several) > 1:
        yield values.problem("sweep.pruner", "compares trials by one value; give one sweep.metric, or pruner none")
    given = direction if isinstance(direction, list) else [direction]
    if direction is not None and direction != "auto" and len(given) != len(several):
        yield values.problem("sweep.direction", f"needs one for each of {len(several)} metrics, or auto")


def _bandit_has_one_slack(values: Values) -> Iterator[Problem]:
    factor, amount = values.get("sweep.pruning.slack_factor"), values.get("sweep.pruning.slack_amount")
    if values.get("sweep.pruner") == "bandit" and (factor is None) == (amount is None):
        message = "bandit needs either sweep.pruning.slack_factor or sweep.pruning.slack_amount"
        yield values.problem("sweep.pruner", message)


RULES: tuple[Callable[[Values], Iterator[Problem]], ...] = (
    _warmup_is_shorter_than_training,
    _points_lie_within_training,
    _early_images_are_smaller,
    _images_are_repeated_in_one_way,
    _something_is_trained_besides_the_head,
    _unfreezing_ends_with_the_freeze,
    _precision_exists_on_the_device,
    _backend_fits_the_device,
    _node_rank_is_below_nodes,
    _nesterov_needs_momentum,
    _groups_choose_in_one_way,
    _folder_has_a_place,
    _csv_has_a_list,
    _columns_differ,
    _evaluation_draws_nothing,
    _parts_are_installed,
    _the_loss_is_installed,
    _a_threshold_needs_binary_targets,
    _normalize_comes_last,
    _normalize_fits_the_channels,
    _sixteen_bits_are_grey,
    _four_channels_are_no_colours,
    _digits_bring_their_own,
    _batchnorm_needs_two_images,
    _weights_belong_to_the_architecture,
    _several_metrics_fit,
    _bandit_has_one_slack,
)
# These don't apply to a trained model, which may be evaluated on single images, or on one folder.
TRAINING_RULES = frozenset(
    {
        _warmup_is_shorter_than_training,
        _points_lie_within_training,
        _early_images_are_smaller,
        _images_are_repeated_in_one_way,
        _something_is_trained_besides_the_head,
        _nesterov_needs_momentum,
        _groups_choose_in_one_way,
        _the_loss_is_installed,
        _a_threshold_needs_binary_targets,
        _batchnorm_needs_two_images,
        _folder_has_a_place,
    }
)


def find_conflicts(values: Mapping[str, Any], *, is_trained: bool = False) -> list[Problem]:
    """The problems of all rules; of a trained model without :data:`TRAINING_RULES`."""
    reader = Values(values)
    rules = [rule for rule in RULES if not is_trained or rule not in TRAINING_RULES]
    return [problem for rule in rules for problem in rule(reader)]
