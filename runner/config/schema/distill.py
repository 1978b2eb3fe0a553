"""Rules of the group `distill`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runner.config.schema.base import AS_TYPED, TRAINING, ConfigSection, LocalPath


class DistillConfig(ConfigSection):
    """A trained model, the teacher, whose scores are learnt beside the labels (Hinton, Vinyals and Dean 2015)."""

    run: Annotated[LocalPath | None, TRAINING, AS_TYPED]
    """Run folder or package of the teacher, which has the classes, channels, bit depth and normalisation of this run
    (null = off)."""
    temperature: Annotated[float, Field(gt=0), TRAINING]
    """The scores of both models are divided by it before they become probabilities of the classes."""
    weight: Annotated[float, Field(ge=0, le=1), TRAINING]
    """Share of the teacher in the training loss; the rest is that of the labels."""
