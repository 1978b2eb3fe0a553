"""A path as the user has typed it."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import ConfigError, Problem
from runner.base.untrusted import printable


def typed_path(text: str, key: str) -> Path:
    """The path, with the home folder for `~`; that :meth:`Path.resolve` can resolve it is sure.

    Args:
        text: as typed.
        key: under which it was typed, for messages.

    Raises:
        ConfigError: no path can be of this name, or its links lead in a circle.
    """
    try:
        path = Path(text).expanduser()
        path.resolve()
        path.exists()  # raises where a name is too long
    except (RuntimeError, ValueError, OSError) as error:  # ~somebody, whom this machine does not know; a NUL
        problem = f"is no path: {error}"
        raise ConfigError([Problem(key=key, value=printable(text), has_value=True, message=problem)]) from error
    return path
