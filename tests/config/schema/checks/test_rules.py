"""The rules between keys, on plain values; what is of a wrong type or missing is none of their business."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.schema.checks.rules import RULES, Values, find_conflicts


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        node = values
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return values


EPOCHS, WARMUP = "trainer.epochs", "schedule.warmup_epochs"
POINTS, GROWING, SIZE = "schedule.points", "data.progressive_resizing", "data.image_size"
GROUPS, UNFREEZE, LOSS = "optimizer.groups", "trainer.unfreeze", "trainer.loss"
FROZEN, WEIGHTS, NAME, FAMILY = "trainer.freeze_backbone_epochs", "model.weights", "model.name", "model.family"
EVAL, TRAIN = "data.eval_transforms", "data.train_transforms"
NORMALIZE = {"name": "normalize", "mean": [0, 0, 0], "std": [0.5, 0.5, 0.5]}
CHANNELS, MEAN = "data.channels", "data.normalize.mean"
PRUNER, SLACK = "sweep.pruner", "sweep.pruning.slack_factor"
RESNET = {FAMILY: "resnet", NAME: "resnet50"}

CASES = [
    ({"data.source": "digits", "data.root": "photos", "data.train": None}, "data.root"),
    ({"data.source": "digits", "data.root": "/cache/digits-v1", "data.train": "/cache/digits-v1/train"}, None),
    ({"model.family": "densenet", "data.batch_size": 1}, "data.batch_size"),
    ({"model.family": "torchvision", "data.batch_size": 1}, None),
    ({EPOCHS: 5, WARMUP: 5}, WARMUP),
    ({EPOCHS: 5, WARMUP: 6.5}, WARMUP),
    ({EPOCHS: 5, WARMUP: 4.9}, None),
    ({EPOCHS: 1, WARMUP: 0}, None),
    ({EPOCHS: "five", WARMUP: 9}, None),
    ({EPOCHS: True, WARMUP: 9}, None),
    ({WARMUP: 9}, None),
    ({EPOCHS: 5, FROZEN: 5, WEIGHTS: None}, FROZEN),
    ({EPOCHS: 5, FROZEN: 4, WEIGHTS: None}, None),
    ({EPOCHS: 5, FROZEN: 5, WEIGHTS: "IMAGENET1K_V1", **RESNET}, None),
    ({EVAL: [{"name": "custom", "part": "no_such_part"}]}, f"{EVAL}.0.part"),
    ({EVAL: [{"name": "custom"}]}, None),
    ({LOSS: "no_such_loss", "trainer.loss_arguments": {}}, LOSS),
    ({LOSS: "cross_entropy", "trainer.loss_arguments": {"gamma": 2}}, "trainer.loss_arguments"),
    ({LOSS: "cross_entropy", "trainer.loss_arguments": {}}, None),
    ({LOSS: "cross_entropy", "trainer.target_threshold": 0.2}, "trainer.target_threshold"),
    ({LOSS: "binary_cross_entropy", "trainer.target_threshold": 0.2}, None),
    ({EPOCHS: 5, FROZEN: 5, WEIGHTS: None, UNFREEZE: [{"after_epochs": 4, "pattern": "a"}]}, None),
    ({EPOCHS: 5, POINTS: [[0, 0.1], [2, 1], [5, 0]]}, None),
    ({EPOCHS: 5, POINTS: [[0, 0.1], [6, 0]]}, f"{POINTS}.1"),
    ({EPOCHS: 5, POINTS: [3, ["six", 1], []]}, None),
    ({EPOCHS: 5, GROWING: [{"epochs": 2, "image_size": 16}, {"epochs": 2, "image_size": [24, 32]}], SIZE: 32}, None),
    ({EPOCHS: 4, GROWING: [{"epochs": 2, "image_size": 16}, {"epochs": 2, "image_size": 24}], SIZE: 32}, GROWING),
    ({EPOCHS: 5, GROWING: [{"epochs": 2, "image_size": [32, 40]}], SIZE: 32}, f"{GROWING}.0.image_size"),
    ({EPOCHS: 5, GROWING: [{"epochs": "two", "image_size": "large"}, 3], SIZE: 32}, None),
    ({"data.balance": "sampler", "data.repeats": 3}, "data.repeats"),
    ({"data.balance": "loss_weights", "data.repeats": 3}, None),
    ({"data.balance": "sampler", "data.repeats": 1}, None),
    ({FROZEN: 2, UNFREEZE: [{"after_epochs": 1}, {"after_epochs": 2}]}, f"{UNFREEZE}.1.after_epochs"),
    ({FROZEN: "two", UNFREEZE: [{"after_epochs": 2}, {"after_epochs": "2"}]}, None),
    ({"trainer.precision": "fp16", "trainer.device": "cpu"}, "trainer.precision"),
    ({"trainer.precision": "fp16", "trainer.device": "auto"}, None),
    ({"trainer.precision": "bf16", "trainer.device": "cpu"}, None),
    ({"dist.backend": "nccl", "trainer.device": "cpu"}, "dist.backend"),
    ({"dist.backend": "nccl", "trainer.device": "mps"}, "dist.backend"),
    ({"dist.backend": "nccl", "trainer.device": "cuda"}, None),
    ({"dist.backend": "gloo", "trainer.device": "cpu"}, None),
    ({"dist.node_rank": 2, "dist.nodes": 2}, "dist.node_rank"),
    ({"dist.node_rank": 1, "dist.nodes": 2}, None),
    ({"dist.node_rank": None, "dist.nodes": 2}, None),
    ({"optimizer.nesterov": True, "optimizer.momentum": 0.0}, "optimizer.nesterov"),
    ({"optimizer.nesterov": False, "optimizer.momentum": 0.0}, None),
    ({"optimizer.nesterov": True, "optimizer.momentum": 0.9}, None),
    ({"data.source": "folder", "data.root": None, "data.train": None}, "data.root"),
    ({"data.source": "folder", "data.root": "photos", "data.train": None}, None),
    ({"data.source": "folder", "data.root": None, "data.train": "photos/train"}, None),
    ({"data.source": "digits", "data.root": None}, None),
    ({"data.source": "csv", "data.root": "photos", "data.train": None}, "data.train"),
    ({"data.source": "csv", "data.root": None, "data.train": "train.csv"}, None),
    ({"data.source": "csv", "data.train": "x", "data.path_column": "a", "data.label_column": "a"}, "data.label_column"),
    ({EVAL: [{"name": "resize"}, {"name": "random_crop"}]}, f"{EVAL}.1.name"),
    ({EVAL: [{"name": "resize"}, {"name": "pad"}], TRAIN: [{"name": "augmix"}]}, None),
    ({EVAL: "resize", TRAIN: [3, None]}, None),
    ({EVAL: [{"name": "resize"}, NORMALIZE], TRAIN: [NORMALIZE]}, None),
    ({EVAL: [NORMALIZE, {"name": "resize"}], TRAIN: []}, f"{EVAL}.0.name"),
    ({EVAL: [{"name": "resize"}, NORMALIZE], TRAIN: []}, EVAL),
    ({EVAL: [], TRAIN: [NORMALIZE]}, EVAL),
    ({EVAL: [NORMALIZE], TRAIN: [{**NORMALIZE, "std": [1, 1, 1]}]}, EVAL),
    ({GROUPS: [{"part": "head"}, {"pattern": "layer4.*", "lr_multiplier": 0.1}]}, None),
    ({GROUPS: [{"part": "head"}, {"lr_multiplier": 0.1}]}, f"{GROUPS}.1"),
    ({GROUPS: [{"part": "head", "pattern": "fc.*"}]}, f"{GROUPS}.0"),
    ({CHANNELS: 1, MEAN: [0.5, 0.5, 0.5]}, MEAN),
    ({CHANNELS: 4, MEAN: [0.5, 0.5, 0.5]}, MEAN),
    ({CHANNELS: 4, MEAN: [0, 0, 0, 0]}, None),
    ({MEAN: [0.5]}, None),
    ({CHANNELS: 1, MEAN: "0.5"}, None),
    (
        {CHANNELS: 1, EVAL: [NORMALIZE | {"std": [1]}], TRAIN: [NORMALIZE | {"std": [1]}]},
        [f"{TRAIN}.0.mean", f"{EVAL}.0.mean"],
    ),
    ({CHANNELS: 3, "data.bit_depth": 16}, "data.bit_depth"),
    ({CHANNELS: 1, "data.bit_depth": 16}, None),
    ({CHANNELS: 4, TRAIN: [{"name": "random_horizontal_flip"}, {"name": "color_jitter"}]}, f"{TRAIN}.1.name"),
    ({CHANNELS: 4, EVAL: [{"name": "grayscale"}]}, f"{EVAL}.0.name"),
    ({CHANNELS: 1, TRAIN: [{"name": "color_jitter"}, {"name": "augmix"}]}, None),
    ({**RESNET, WEIGHTS: None}, None),
    ({**RESNET, WEIGHTS: "IMAGENET1K_V2"}, None),
    ({**RESNET, WEIGHTS: "DEFAULT"}, None),
    ({**RESNET, WEIGHTS: "ResNet50_Weights.IMAGENET1K_V2"}, None),
    ({**RESNET, WEIGHTS: "runs/model.safetensors"}, None),
    ({**RESNET, WEIGHTS: "IMAGENET1K_V9"}, WEIGHTS),
    ({**RESNET, WEIGHTS: "ResNet18_Weights.IMAGENET1K_V1"}, WEIGHTS),
    ({**RESNET, WEIGHTS: "imagenet"}, WEIGHTS),
    ({FAMILY: "torchvision", NAME: "efficientnet_b0", WEIGHTS: "IMAGENET1K_V1"}, None),
    ({FAMILY: "torchvision", NAME: "efficientnet_b0", WEIGHTS: "EfficientNet_B1_Weights.DEFAULT"}, WEIGHTS),
    ({FAMILY: "custom", NAME: "mine", WEIGHTS: "IMAGENET1K_V1"}, WEIGHTS),
    ({FAMILY: "custom", NAME: "mine", WEIGHTS: "mine.pth"}, None),
    ({PRUNER: "median", "sweep.metric": ["val_top1", "val_loss"], "sweep.direction": "auto"}, PRUNER),
    ({PRUNER: "median", "sweep.metric": "val_top1", "sweep.direction": "auto"}, None),
    ({PRUNER: "none", "sweep.metric": ["val_top1", "val_loss"], "sweep.direction": ["maximize"]}, "sweep.direction"),
    ({PRUNER: "none", "sweep.metric": None, "sweep.direction": "maximize"}, None),
    ({PRUNER: "bandit", SLACK: None, "sweep.pruning.slack_amount": None}, PRUNER),
    ({PRUNER: "bandit", SLACK: 0.1, "sweep.pruning.slack_amount": 0.1}, PRUNER),
    ({PRUNER: "bandit", SLACK: 0.1, "sweep.pruning.slack_amount": None}, None),
]


@pytest.mark.parametrize(("flat", "key"), CASES)
def test_keys_that_disagree_are_reported_under_the_key_to_change(flat, key):
    problems = find_conflicts(nested(flat))
    assert [problem.key for problem in problems] == ([] if key is None else [key] if isinstance(key, str) else key)
    # Entries of a list have no key of their own here.
    with_value = [problem for problem in problems if problem.has_value and problem.key in flat]
    assert all(problem.value == flat[problem.key] for problem in with_value)
    assert with_value or problems == [] or flat.keys() & {EVAL, TRAIN, GROUPS, UNFREEZE, POINTS, GROWING}


def test_the_cases_break_every_rule():
    broken = {rule for flat, _ in CASES for rule in RULES for _ in rule(Values(nested(flat)))}
    assert broken == set(RULES)


def test_rules_ignore_missing_values_and_wrong_types():
    assert find_conflicts({}) == []
    assert find_conflicts({"trainer": None, "model": "resnet50", "data": [1], "dist": 3}) == []
