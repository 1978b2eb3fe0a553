"""`python -m runner` and the console script `runner`: the only module that turns errors into exit codes."""

from __future__ import annotations

if __name__ == "__main__":  # before other imports, which would search the working folder
    from runner.base.children import remove_working_folder_from_path

    remove_working_folder_from_path()

import signal
import sys
from typing import NoReturn

from runner.base import console
from runner.base.children import set_safe_path_for_children
from runner.base.errors import EXIT_FAILURE, RunnerError
from runner.base.process import EXIT_BROKEN_PIPE, die_of_sigterm, exit_without_cleanup, is_stdout_closed
from runner.cli import front_door


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        return front_door.run(sys.argv[1:])
    except RunnerError as error:
        console.show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("runner: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if is_stdout_closed():
            return EXIT_BROKEN_PIPE
        console.show_traceback()
        return EXIT_FAILURE
    except Exception:
        console.show_traceback()
        return EXIT_FAILURE


def run_and_leave() -> NoReturn:
    """Carry out the command line of this process and end it."""
    die_of_sigterm()
    set_safe_path_for_children()
    exit_without_cleanup(main())


if __name__ == "__main__":
    run_and_leave()
