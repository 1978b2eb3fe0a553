"""A worker process, `python -m runner.tools.serve.scoring_worker DESCRIPTOR`: answers batches until its socket closes.

It ignores SIGTERM and SIGINT, which a terminal or a service manager sends to all processes at once: the front process
ends it by closing the socket, once everything that was accepted is answered.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from runner.base import console
from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, EXIT_FAILURE, RunnerError
from runner.base.process import exit_without_cleanup, freed_memory_kept, gc_frozen, gc_paused
from runner.config.schema.calls.of_serving import ServeRules
from runner.tools.serve.frames import read_frame, split_parts, write_frame


def work(connection: socket.socket) -> int:
    """Load the model that the first frame names, say that it is ready, and answer all other frames."""
    first = read_frame(connection)
    if first is None:
        return EXIT_DONE
    facts, _ = first
    try:
        with gc_paused():
            from runner.tools.serve.served_model import ServedModel  # noqa: PLC0415 - torch, in a worker only
        model = ServedModel(
            Path(facts["folder"]), ServeRules.model_validate_json(facts["rules"]), number=facts["number"]
        )
    except RunnerError as error:
        write_frame(connection, {"failed": error.name, "message": str(error)})
        return error.exit_code
    write_frame(connection, {"ready": model.description})
    with gc_frozen(), freed_memory_kept():  # no answer waits for a search through all of torch
        while (frame := read_frame(connection)) is not None:
            facts, content = frame
            answers = model.answer(split_parts(content, facts["sizes"]))
            observations = [one.to_json() if one is not None else None for one in answers.observations]
            found = {"errors": answers.errors, "observations": observations}
            write_frame(connection, found, answers.probabilities.tobytes())
    return EXIT_DONE


def main() -> int:
    """Run this process, and return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    console.set_up()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            return work(connection)
        except OSError:  # the front process has ended
            return EXIT_DONE
        except RunnerError as error:
            LOGGER.error("a worker ends: %s: %s", error.name, error)
            return EXIT_FAILURE
        except Exception:
            console.show_traceback()
            return EXIT_FAILURE


if __name__ == "__main__":
    exit_without_cleanup(main())
