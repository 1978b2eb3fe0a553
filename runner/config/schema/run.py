"""Rules of the keys under `run`: how a run is named, and whether it keeps its code."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from runner.config.schema.base import AS_TYPED, ConfigSection

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Without dots, which on the command line are between keys.
_TAG = re.compile(r"[\w-]{1,100}")


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must be one line without control characters")
    return text


def _tag_name(name: str) -> str:
    if not _TAG.fullmatch(name):
        raise ValueError(f"must be of letters, digits, _ and -, not {name[:40]!r}")
    return name


OneLine = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_one_line)]
Notes = Annotated[str, Field(max_length=10_000)]
TagName = Annotated[str, AfterValidator(_tag_name)]
TagValue = Annotated[str, Field(max_length=1_000), AfterValidator(_one_line)] | int | float | bool


class RunConfig(ConfigSection):
    """How a run is named, for those who look for it later, which `runs tag` changes in run.json; and its code."""

    name: Annotated[OneLine | None, AS_TYPED]
    """A name for people; several runs may have the same."""
    group: Annotated[OneLine | None, AS_TYPED]
    """What the run belongs to, such as a series of experiments."""
    tags: dict[TagName, TagValue]
    """Any words about the run, {dataset: v2, reviewed: true}; a single one is run.tags.NAME=VALUE."""
    notes: Annotated[Notes | None, AS_TYPED]
    """Why the run is made, in sentences."""
    snapshot: bool
    """Keep the code in the run folder: what git would commit, tracked and untracked, as source.tar.gz."""

    def __hash__(self) -> int:
        # A dict has no hash.
        return hash(self.model_dump_json())
