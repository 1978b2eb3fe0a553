"""`python -m runner` and the console script `runner`: the only place that turns results into exit codes."""

from __future__ import annotations

if __name__ == "__main__":  # First: what is imported from here on does not come out of the working folder.
    from runner.base.children import leave_out_working_folder

    leave_out_working_folder()

import signal
import sys
from typing import NoReturn

from runner.base import console
from runner.base.children import keep_children_safe
from runner.base.errors import EXIT_FAILURE, RunnerError
from runner.base.process import NOBODY_READS, has_lost_its_reader, leave
from runner.cli import front_door


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
        console.show_traceback()
        return EXIT_FAILURE
    except Exception:
        console.show_traceback()
        return EXIT_FAILURE


def run_and_leave() -> NoReturn:
    """Carry out the command line of this process and end it."""
    keep_children_safe()
    leave(main())


if __name__ == "__main__":
    run_and_leave()
