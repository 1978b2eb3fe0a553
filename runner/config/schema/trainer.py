"""Rules of the group `trainer`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from runner.config.schema.base import LAST_BITS, LENGTH, NONE, START, TRAINING, ConfigSection

TOP_K = 5


def can_miss_top5(num_classes: int | None) -> bool:
    """Whether five guesses can all be wrong; with five classes or fewer, top-5 is 1 by definition and says nothing."""
    return num_classes is None or num_classes > TOP_K


LOSS_NAMES = ("cross_entropy", "binary_cross_entropy")
"""Values of trainer.loss that are no entry points."""


class UnfreezeRule(ConfigSection):
    """An entry of `trainer.unfreeze`: parameters of the backbone that learn earlier than the rest of it."""

    after_epochs: Annotated[int, Field(ge=0)]
    """Epochs at the start in which they do not learn yet, fewer than freeze_backbone_epochs."""
    pattern: Annotated[str, Field(min_length=1)]
    """Names of parameters with the wildcards *, ? and [abc], such as `layer4.*`."""


class TrainerConfig(ConfigSection):
    """How long, how precisely and on what to train, and what to keep."""

    epochs: Annotated[int, Field(ge=1), LENGTH]
    """Passes over the training split; the length of the schedule."""
    max_steps: Annotated[Annotated[int, Field(ge=1)] | None, LENGTH]
    """End after this many optimizer steps in all (null = off); evaluation and packaging still follow, and the
    schedule keeps its length."""
    patience: Annotated[Annotated[int, Field(ge=1)] | None, LENGTH]
    """Stop after this many epochs without a better validation loss than the best so far (null = off)."""
    monitor: Annotated[Literal["val_top1", "val_top5", "val_loss"], TRAINING]
    """The metric by which the best epoch is chosen, and which a sweep is given."""
    find_lr: Annotated[bool, NONE]
    """Before the training, take up to 100 steps with a growing rate, and undo them: range_test.png in the run folder
    shows the losses, and the log says where they fell fastest (Smith 2017). The training itself does not change."""
    print_every: Annotated[int, Field(ge=1), NONE]
    """Steps between two progress reports."""
    checkpoint_every: Annotated[Annotated[int, Field(ge=1)] | None, NONE]
    """Steps between two checkpoints within an epoch (null = only at the end of each epoch)."""
    checkpoint_minutes: Annotated[Annotated[float, Field(gt=0)] | None, NONE]
    """Minutes between two checkpoints within an epoch (null = off); besides checkpoint_every."""
    keep: Annotated[int, Field(ge=1), NONE]
    """Number of newest checkpoints that are kept, besides the best."""
    grace_seconds: Annotated[float, Field(gt=0), NONE]
    """Longest time from a request to stop (SIGTERM, SIGINT, SIGUSR1) until everything is saved; then the process ends
    anyway, and the checkpoints so far stand. With dist=slurm at most dist.slurm.warning_seconds."""
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], LAST_BITS]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], LAST_BITS]
    """Number format of the forward pass; auto takes bf16 where the hardware is fast at it. Weights stay fp32."""
    compile: Annotated[bool, LAST_BITS]
    """Compile the model with torch.compile: slower start, often faster steps."""
    deterministic: Annotated[bool, LAST_BITS]
    """Only use algorithms that give the same bits each time, on GPUs too (slower there; fp32 without TF32)."""
    accumulate_steps: Annotated[int, Field(ge=1), TRAINING]
    """Batches whose gradients are added up before each optimizer step."""
    clip_norm: Annotated[Annotated[float, Field(gt=0)] | None, TRAINING]
    """Largest allowed L2 norm of all gradients together (null = off)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), TRAINING]
    """Share of the target that is spread evenly over all classes (Szegedy et al. 2016); training loss only."""
    loss: Annotated[str, TRAINING]
    """What training minimises: cross_entropy, binary_cross_entropy (each class against all others, the mean over the
    classes; Wightman et al. 2021), or the name of an entry point of the group `runner.losses`. The validation loss is
    cross-entropy with each."""
    target_threshold: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, TRAINING]
    """With binary_cross_entropy: targets above it count as 1 and others as 0, after smoothing and mixing
    (null = off)."""
    loss_arguments: Annotated[dict[str, Any], TRAINING]
    """Settings of a loss of your own, which its package declares; `--help trainer` lists what is installed."""
    mixup_alpha: Annotated[Annotated[float, Field(gt=0)] | None, TRAINING]
    """Mix each training image with another of its batch, in shares drawn from Beta(alpha, alpha) (MixUp, Zhang et al.
    2018; usually 0.2; null = off). Training top-1 then counts first guesses at the first of both."""
    cutmix_alpha: Annotated[Annotated[float, Field(gt=0)] | None, TRAINING]
    """Lay a rectangle of another image of its batch over each training image, of an area drawn from Beta(alpha, alpha)
    (CutMix, Yun et al. 2019; usually 1; null = off). With mixup_alpha too, each batch gets one of both by lot."""
    ema_decay: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, START]
    """Decay per step of an exponential moving average of the weights (null = off); evaluated too, and packaged
    where it is the better one."""
    freeze_backbone_epochs: Annotated[int, Field(ge=0), TRAINING]
    """Epochs at the start in which only the classification head learns, and what trainer.unfreeze adds to it."""
    unfreeze: Annotated[tuple[UnfreezeRule, ...], TRAINING]
    """Parts of the backbone that learn before the end of freeze_backbone_epochs (unfreezing in stages)."""
