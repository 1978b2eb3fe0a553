"""Rules of the group `optimizer`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import START, ConfigSection


class _Optimizer(ConfigSection):
    lr: Annotated[float, Field(gt=0)]
    """Peak learning rate for one process."""
    lr_scaling: Literal["linear", "none"]
    """linear: the actual peak rate is lr × world size (Goyal et al. 2017); none: it is lr."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay per step, relative to the learning rate."""
    decay_norm_and_bias: bool
    """Whether weight decay also acts on biases and normalisation layers."""


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


OptimizerConfig = Annotated[SGDConfig | AdamWConfig, Field(discriminator="name")]
