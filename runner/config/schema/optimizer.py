"""Rules of the group `optimizer`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import START, ConfigSection


class GroupRule(ConfigSection):
    """An entry of `optimizer.groups`: some parameters, with their own learning rate and weight decay.

    Lists in YAML are replaced as a whole, never merged, so that the defaults of their entries are in the schema.
    """

    pattern: Annotated[str, Field(min_length=1)] | None = None
    """Names of parameters with the wildcards *, ? and [abc], as timm takes them: `layer4.*`, `*.attn.*`."""
    part: Literal["head", "backbone", "norm_and_bias"] | None = None
    """Instead of a pattern: the classification head, all but the head, or parameters of at most one dimension."""
    lr_multiplier: Annotated[float, Field(ge=0)] = 1.0
    """Factor on the learning rate of the schedule; with layer_decay both multiply."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of these parameters, biases and normalisation included; null: as without the rule."""


class _Optimizer(ConfigSection):
    lr: Annotated[float, Field(gt=0)]
    """Peak learning rate for one process."""
    lr_scaling: Literal["linear", "none"]
    """linear: the actual peak rate is lr × world size (Goyal et al. 2017); none: it is lr."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay per step, relative to the learning rate."""
    decay_norm_and_bias: bool
    """Whether weight decay also acts on biases and normalisation layers."""
    groups: tuple[GroupRule, ...]
    """Rules for some of the parameters; the first rule that matches a parameter applies to it, and only that one."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None
    """Layer-wise decay of the learning rate (Clark et al. 2020; Bao et al. 2022): the head learns at the full rate,
    each layer before it at this share of the rate of the layer after it (null = off)."""


class SGDConfig(_Optimizer):
    """Stochastic gradient descent with momentum (torch.optim.SGD)."""

    name: Annotated[Literal["sgd"], START]
    """Which optimizer; set by the option of the group."""
    momentum: Annotated[float, Field(ge=0, lt=1)]
    """Share of the last update that is added to the next one."""
    nesterov: bool
    """Nesterov's form of momentum."""


class AdamWConfig(_Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019; torch.optim.AdamW)."""

    name: Annotated[Literal["adamw"], START]
    """Which optimizer; set by the option of the group."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    """Decay rates of the running averages of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0)]
    """Added to the denominator."""


class LARSConfig(_Optimizer):
    """SGD whose rate each layer scales to the size of its weights, for large batches (You et al. 2017,
    arXiv:1708.03888; timm.optim.Lars, which takes `pip install timm`). Parameters without weight decay are not scaled.
    """

    name: Annotated[Literal["lars"], START]
    """Which optimizer; set by the option of the group."""
    momentum: Annotated[float, Field(ge=0, lt=1)]
    """Share of the last update that is added to the next one."""
    nesterov: bool
    """Nesterov's form of momentum."""
    trust_coefficient: Annotated[float, Field(gt=0)]
    """Size of an update relative to the size of the layer's weights, at a learning rate of 1."""


class LAMBConfig(_Optimizer):
    """Adam whose rate each layer scales to the size of its weights, for large batches (You et al. 2020,
    arXiv:1904.00962; timm.optim.Lamb, which takes `pip install timm`). Parameters without weight decay are not scaled.
    """

    name: Annotated[Literal["lamb"], START]
    """Which optimizer; set by the option of the group."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    """Decay rates of the running averages of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0)]
    """Added to the denominator."""


class MuonConfig(_Optimizer):
    """Muon for weight matrices and convolutions, AdamW for the rest (Jordan et al. 2024; timm.optim.Muon, which takes
    `pip install timm`). Muon's updates have the root mean square of AdamW's (Liu et al. 2025, arXiv:2502.16982), so
    that one learning rate and one weight decay serve both.
    """

    name: Annotated[Literal["muon"], START]
    """Which optimizer; set by the option of the group."""
    momentum: Annotated[float, Field(ge=0, lt=1)]
    """Decay rate of Muon's running average of the gradient."""
    nesterov: bool
    """Nesterov's form of momentum, in both parts."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    """AdamW's decay rates of the running averages of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0)]
    """Added to both denominators."""


OptimizerConfig = Annotated[SGDConfig | AdamWConfig | LARSConfig | LAMBConfig | MuonConfig, Field(discriminator="name")]
