from __future__ import annotations

import pytest
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.config.schema.model import WEIGHTS_OF
from runner.model import WeightsPreprocessing, weights_preprocessing
from runner.model.catalogue import check_classifier_name, torchvision_weights


@pytest.mark.parametrize("name", WEIGHTS_OF)
def test_the_schemas_table_of_weights_is_torchvisions(name):
    offered = models.get_model_weights(name)
    # A newer torchvision may offer more.
    assert set(WEIGHTS_OF[name]) <= {weights.name for weights in offered}
    assert offered.__name__.removesuffix("_Weights").lower() == name


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("fasterrcnn_resnet50_fpn", "detection"),
        ("deeplabv3_resnet50", "segmentation"),
        ("r3d_18", "video"),
        ("quantized_resnet50", "quantization"),
        ("raft_small", "optical_flow"),
    ],
)
def test_models_for_other_tasks_are_refused_with_their_task(name, task):
    with pytest.raises(InvalidModelError, match=rf"{name}' belongs to torchvision\.models\.{task}; only image classif"):
        check_classifier_name(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ResNet50", "did you mean resnet50"),
        ("vitb16", "vit_b_16"),
        ("quantized_resnet50", "resnet50"),
        ("zzz", "there are alexnet, .*wide_resnet50_2$"),
    ],
)
def test_the_nearest_names_are_given(name, hint):
    with pytest.raises(InvalidModelError, match=hint):
        check_classifier_name(name)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("IMAGENET1K_V1", models.ResNet50_Weights.IMAGENET1K_V1),
        ("ResNet50_Weights.IMAGENET1K_V2", models.ResNet50_Weights.IMAGENET1K_V2),
        ("DEFAULT", models.ResNet50_Weights.DEFAULT),
        (None, None),
        ("some/folder/model.pth", None),
        ("model.safetensors", None),
    ],
)
def test_weights_names(weights, expected, resnet):
    assert torchvision_weights(resnet(name="resnet50", weights=weights)) is expected


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet18", "IMAGENET1K_V2", "no such classifier weights for resnet18; allowed: IMAGENET1K_V1, DEFAULT"),
        ("resnet18", "ResNet50_Weights.IMAGENET1K_V1", "weights of resnet50, but model.name = 'resnet18'"),
        ("resnet18", "imagenet please", "no such classifier weights"),
        # The layers before the head are NaN in this file.
        ("vgg16", "IMAGENET1K_FEATURES", "no such classifier weights for vgg16; allowed: IMAGENET1K_V1, DEFAULT"),
        ("nonsense", "IMAGENET1K_V1", "no such image classifier"),
    ],
)
def test_weights_that_torchvision_does_not_have(name, weights, message, torchvision_model):
    with pytest.raises(InvalidModelError, match=message):
        torchvision_weights(torchvision_model(name, weights))


def test_a_custom_model_has_no_weights_by_name(custom):
    with pytest.raises(InvalidModelError, match="a custom model starts from null or from a weights file"):
        torchvision_weights(custom("mine", "IMAGENET1K_V1"))


def test_preprocessing_is_what_torchvision_publishes(resnet, torchvision_model):
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert weights_preprocessing(resnet(weights="IMAGENET1K_V1")) == WeightsPreprocessing(
        resize_size=256, crop_size=224, interpolation="bilinear", **imagenet
    )
    assert weights_preprocessing(torchvision_model("efficientnet_v2_l", "DEFAULT")) == WeightsPreprocessing(
        resize_size=480, crop_size=480, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )


@pytest.mark.parametrize("weights", [None, "model.pth"])
def test_only_named_weights_bring_preprocessing(weights, resnet):
    assert weights_preprocessing(resnet(weights=weights)) is None
