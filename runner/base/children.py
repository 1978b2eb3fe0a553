"""Keeps the working folder out of what is imported: a folder of others may hold a `difflib.py`.

`python -m` looks there first, and so do the processes that Python starts by `-c`. The console script does not. Here,
and in the package itself, nothing is imported that Python has not imported before it looks at that folder.
"""

# ruff: noqa: PTH109, PTH120 - for that reason

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_SAFE_PATH = "PYTHONSAFEPATH"


def leave_out_working_folder() -> None:
    """Import nothing more from the working folder, which Python itself has put first for `-m`.

    A source checkout that is the working folder stays: the runner itself comes from there, and processes that are
    started look there too. What the user names in PYTHONPATH stays in any case.
    """
    if sys.flags.safe_path or not sys.path or sys.path[0] != os.getcwd():
        return
    if os.path.realpath(sys.path[0]) != _ROOT:
        del sys.path[0]
    else:
        given = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([given] if given else []), _ROOT])


def keep_children_safe() -> None:
    """Processes that this one starts import nothing from the working folder."""
    os.environ[_SAFE_PATH] = "1"


@contextmanager
def children_kept_safe() -> Iterator[None]:
    """The same for processes that are started within the block; for scripts that import the runner."""
    before = os.environ.get(_SAFE_PATH)
    keep_children_safe()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
