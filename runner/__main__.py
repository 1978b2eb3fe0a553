"""`python -m runner` and the console script `runner`: the only place that turns results into exit codes."""

from __future__ import annotations

import signal
import sys
import traceback

from runner import console, front_door
from runner.errors import EXIT_FAILURE, RunnerError


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
    except Exception:
        traceback.print_exc()
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
