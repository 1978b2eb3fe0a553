"""Rules of the keys of commands that take an experiment, or make one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath


class DoctorRules(ConfigSection):
    """What doctor measures."""

    measure: bool
    """Train a few steps on the real data, and keep nothing of them; false looks at the machine only."""
    seconds: Annotated[float, Field(gt=0, le=600)]
    """About how long each of the measurements takes: training, the device alone, the loader alone."""
    compile: bool
    """Also measure whether trainer.compile pays, which takes a minute or so."""


class DoctorCall(ConfigSection):
    """`python -m runner doctor`."""

    format: Literal["table", "json"]
    """A table for people, or JSON for scripts."""
    doctor: DoctorRules
    """What doctor measures."""


class InitRules(ConfigSection):
    """What the first experiment is made from."""

    data: Annotated[LocalPath | None, AS_TYPED]
    """A folder of class folders, or one with train/ and perhaps val/ and test/: the experiment is filled in from a look
    at them, which only reads; null: the experiment is on the digits."""
    measure: bool
    """Choose data.batch_size by a short training on these images with several sizes; false: do not train."""


class InitCall(ConfigSection):
    """`python -m runner init output=FOLDER`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder of the project; it may exist, its files of these names must not."""
    init: InitRules
    """What the first experiment is made from."""


class ValidateCall(ConfigSection):
    """`python -m runner validate`."""

    config_only: bool
    """Check the config alone, neither data nor model nor machine: for a machine without the data, as in CI."""


class ArchitecturesCall(ConfigSection):
    """`python -m runner architectures`."""

    pattern: Annotated[str, Field(min_length=1), AS_TYPED]
    """Only names like this, with * and ? as in a shell, such as 'convnext*'."""
    source: Literal["torchvision", "timm", "custom"] | None
    """Only those of this option of the group `model`; custom: those of installed packages."""
    limit: Annotated[int, Field(ge=1)]
    """Show at most this many: the parameters of each are counted, which takes up to a second."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""
