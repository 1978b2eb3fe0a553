"""Rules of the own keys of `drift`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath
from runner.config.schema.calls_models import RegistryRules


class DriftCall(ConfigSection):
    """`python -m runner drift model=DIR input=FOLDER`."""

    run: Annotated[LocalPath | None, AS_TYPED]
    """The run folder whose packaged model says what its validation images looked like."""
    model: Annotated[LocalPath | None, AS_TYPED]
    """A packaged model alone: the folder model/ of a run, or a registered version, such as models:/birds@champion or
    models:/birds/2."""
    registry: RegistryRules
    """Where models are registered."""
    input: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The images to compare: a folder, an image, a .txt with a path on each line, or a .csv with a column `path`."""
    root: Annotated[LocalPath | None, AS_TYPED]
    """Folder at which the relative paths of a list start; null means the folder of the list."""
    threshold: Annotated[float, Field(gt=0, le=100)]
    """Population stability index from which on a feature has drifted, if its test agrees. By the usual rule a change
    below 0.1 is none, and one above 0.25 is large."""
    fail_on_drift: bool
    """End with the error DriftError, exit code 1, where a feature has drifted: for scripts."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images that are scored at once."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that load images; 0 loads in the scoring process, auto chooses."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Number format; auto takes bf16 where the hardware is fast at it, as training and evaluation do."""
