"""Keeps the working folder out of `sys.path`: a folder of images from elsewhere may hold a `difflib.py`.

`python -m` and `python -c` put the working folder first in `sys.path`; the console script does not. This module and
`runner/__init__.py` import only what Python itself has imported by then.
"""

# ruff: noqa: PTH109, PTH120 - pathlib is not imported by then

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_SAFE_PATH = "PYTHONSAFEPATH"


def remove_working_folder_from_path() -> None:
    """Take the working folder, which `python -m` has put first, out of `sys.path`.

    Where the working folder is the runner's own source checkout, it stays, and child processes get it in PYTHONPATH.
    Folders that the user names in PYTHONPATH stay in any case.
    """
    if sys.flags.safe_path or not sys.path or sys.path[0] != os.getcwd():
        return
    if os.path.realpath(sys.path[0]) != _ROOT:
        del sys.path[0]
    else:
        given = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([given] if given else []), _ROOT])


def set_safe_path_for_children() -> None:
    """Keep the working folder out of `sys.path` of all child processes (PYTHONSAFEPATH)."""
    os.environ[_SAFE_PATH] = "1"


@contextmanager
def safe_path_for_children() -> Iterator[None]:
    """As :func:`set_safe_path_for_children`, within the block only; for scripts that import the runner."""
    before = os.environ.get(_SAFE_PATH)
    set_safe_path_for_children()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
