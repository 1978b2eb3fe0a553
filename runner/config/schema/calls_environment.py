"""Rules of the keys of `runs environment`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath


class RunsEnvironmentCall(ConfigSection):
    """`python -m runner runs environment run=DIR output=FOLDER`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder whose environment is to be rebuilt."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder to make; it appears only when it is complete, and must not exist or be empty."""
    base: Annotated[str, Field(max_length=250, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@-]*$"), AS_TYPED] | None
    """The image that the Dockerfile starts from, with Python, its venv and apt-get; null: python:VERSION-slim, of the
    run's Python."""
