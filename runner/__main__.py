"""`python -m runner` and the console script `runner`: the only place that turns results into exit codes."""

from __future__ import annotations

import os
import sys


def _forget_working_folder() -> None:
    """Import nothing from the working folder, unless the runner itself lies there.

    `python -m` puts it first on the path: a `difflib.py`, a `hydra_plugins/` or an `x.dist-info` in a folder that came
    from somebody else would be run. What PYTHONPATH names stays. Python itself has imported a few modules by then, so
    that only the console script `runner` is safe in such a folder.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - imports nothing yet
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.getcwd() != home:  # noqa: PTH109
        del sys.path[0]


if __name__ == "__main__":
    _forget_working_folder()

import signal
import traceback
from typing import NoReturn

from runner import console, front_door
from runner.errors import EXIT_FAILURE, RunnerError
from runner.leave import NOBODY_READS, has_lost_its_reader, leave


def main() -> int:
    """Carry out the command line of this process and return its exit code."""
    try:
        return front_door.run(sys.argv[1:])
    except RunnerError as error:
        console.show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("runner: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if has_lost_its_reader():
            return NOBODY_READS
        traceback.print_exc()
        return EXIT_FAILURE
    except Exception:
        traceback.print_exc()
        return EXIT_FAILURE


def run_and_leave() -> NoReturn:
    """Carry out the command line of this process and end it."""
    leave(main())


if __name__ == "__main__":
    run_and_leave()
