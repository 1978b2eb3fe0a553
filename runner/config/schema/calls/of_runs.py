"""Rules of the keys of `runs …`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath
from runner.config.schema.run import Notes, OneLine, TagName, TagValue


class RunsFilter(ConfigSection):
    """Which runs under a folder are meant."""

    root: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder that is searched for runs, with all folders in it."""
    status: Literal["running", "completed", "stopped", "failed", "pruned", "died", "damaged", "queued"] | None
    """Only runs of this status; died: it says running, but no process is left; damaged: run.json can't be read."""
    model: Annotated[str | None, AS_TYPED]
    """Only runs of this model; a pattern, such as resnet*."""
    data: str | None
    """Only runs on this data, such as digits, CIFAR10 or folder, or on this data.root; a pattern."""
    name: Annotated[str | None, AS_TYPED]
    """Only runs of this name; a pattern."""
    group: Annotated[str | None, AS_TYPED]
    """Only runs of this group; a pattern."""
    tags: dict[TagName, TagValue]
    """Only runs with these tags, tags.NAME=VALUE; a value is a pattern."""


class RunsListCall(RunsFilter):
    """`python -m runner runs list`."""

    sort: Annotated[str | None, AS_TYPED]
    """A column to sort by, the best first: start (null), took, a key of metrics.jsonl such as val_top1, or a key of the
    config such as optimizer.lr."""
    columns: tuple[str, ...]
    """Columns to show, such as [folder,name,optimizer.lr,val_top1]: folder, name, group, tags, notes, model, data,
    best, epoch, status, took, start, or such keys as for sort; empty chooses."""
    limit: Annotated[int, Field(ge=1)] | None
    """Show at most this many, the first."""
    format: Literal["table", "json", "csv"]
    """A table for people; JSON or CSV for programs."""


class RunsCompareCall(RunsFilter):
    """`python -m runner runs compare output=FILE.html`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The page to write, a new file."""
    runs: tuple[LocalPath, ...]
    """The run folders to draw, in place of those that the filters find."""
    sort: Annotated[str | None, AS_TYPED]
    """As of runs list."""
    limit: Annotated[int, Field(ge=1, le=50)]
    """Draw at most this many, the first."""


class RunsWatchCall(ConfigSection):
    """`python -m runner runs watch run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, also on a disk that another machine writes."""
    every_seconds: Annotated[float, Field(gt=0, le=3600)]
    """How often the folder is looked at."""


class RunsSyncCall(ConfigSection):
    """`python -m runner runs sync run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, or the sweep folder, of which trackers lack something."""


class RunsDeleteCall(ConfigSection):
    """`python -m runner runs delete run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, of a run that is completed or has no checkpoint to resume from."""


class RunsPruneCall(RunsFilter):
    """`python -m runner runs prune keep=N`."""

    keep: Annotated[int, Field(ge=0)]
    """How many checkpoints stay of each run, the newest; those that `best` and `last` name stay too, and the newest
    valid one of a run that is not completed. With 0, completed runs keep their package alone."""
    dry_run: bool
    """Only say what would be deleted."""


class RunsTagCall(ConfigSection):
    """`python -m runner runs tag run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder."""
    name: Annotated[OneLine | None, AS_TYPED]
    """A new name; null keeps the one it has."""
    group: Annotated[OneLine | None, AS_TYPED]
    """A new group; null keeps the one it has."""
    notes: Annotated[Notes | None, AS_TYPED]
    """New notes; null keeps those it has."""
    tags: dict[TagName, TagValue]
    """Tags to add or replace, each typed as NAME=VALUE; ~NAME removes one."""


class RunsDiffCall(ConfigSection):
    """`python -m runner runs diff a=DIR b=DIR`."""

    a: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """One run folder."""
    b: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The other run folder."""
    format: Literal["table", "json"]
    """Tables for people, or JSON for programs."""


class RunsRepeatCall(ConfigSection):
    """`python -m runner runs repeat run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder whose config a new run takes."""


class RunsEnvironmentCall(ConfigSection):
    """`python -m runner runs environment run=DIR output=FOLDER`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder whose environment is to be rebuilt."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder to make; it appears only when it is complete, and must not exist or be empty."""
    base: Annotated[str, Field(max_length=250, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@-]*$"), AS_TYPED] | None
    """The image that the Dockerfile starts from, with Python, its venv and apt-get; null: python:VERSION-slim, of the
    run's Python."""
