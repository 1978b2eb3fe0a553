"""Tries one input in a fork of a process that has imported everything, under a watch and within limits."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.hostile.place import SECRET, Input, Place
from tests.hostile.watch import Watchdog

Outcome = Literal["refused", "accepted", "traceback", "effect", "time-out", "memory", "crash"]
GOOD: tuple[Outcome, ...] = ("refused", "accepted")
MORE_BYTES = 1 << 30
"""How much memory an input may take beyond what the imports have taken."""
_SHOWN = 3000
_FILE_BYTES = 256 << 20
_SCANNED_BYTES = 4 << 20
_NAMED = re.compile(r"^runner: (\w+): ", re.MULTILINE)
_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]")
_NO_MEMORY = ("MemoryError", "bad_alloc", "can't allocate memory", "Cannot allocate memory", "can't start new thread")


@dataclass(frozen=True)
class Verdict:
    """How an input ended."""

    outcome: Outcome
    detail: str
    seconds: float
    cpu_seconds: float
    output: str
    """The end of what it printed."""


def attempt(item: Input, place: Place) -> Verdict:
    """Try an input in a process of its own; its place is gone afterwards."""
    place.make()
    start, since = time.monotonic(), time.time() - 1
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _live(item, place, writing)
    os.close(writing)
    try:
        is_over, status, usage = _waited(pid, item.seconds)
        has_left = _clear_session(pid)
        with os.fdopen(reading, "rb") as pipe:
            reports = [json.loads(line) for line in pipe.read().splitlines()]
        outcome, detail = _judged(place, since, is_over, status, reports)
        if outcome in GOOD and has_left:
            outcome, detail = "effect", "processes were left behind"
        if outcome in GOOD and usage.ru_maxrss * 1024 > _rss() + MORE_BYTES:
            outcome, detail = "memory", f"{usage.ru_maxrss >> 10} MiB"
        output = (place.base / "output").read_text(errors="replace")[-_SHOWN:] if outcome not in GOOD else ""
        return Verdict(outcome, detail, time.monotonic() - start, usage.ru_utime + usage.ru_stime, output)
    finally:
        shutil.rmtree(place.base, ignore_errors=True)


def _waited(pid: int, seconds: float) -> tuple[bool, int, resource.struct_rusage]:
    descriptor = os.pidfd_open(pid)
    try:
        is_over = bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return is_over, status, usage


def _clear_session(pid: int) -> bool:
    """Whether other processes of the input outlived it by more than a moment; they are gone then."""
    for _ in range(40):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # they end at this moment
        os.killpg(pid, signal.SIGKILL)
    return True


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _judged(
    place: Place, since: float, is_over: bool, status: int, reports: list[tuple[str, str]]
) -> tuple[Outcome, str]:
    output = (place.base / "output").read_bytes()[:_SCANNED_BYTES].decode(errors="replace")
    told = dict(reports)
    if "broken" in told:
        raise RuntimeError(f"the input could not be prepared: {told['broken']}")
    if effect := told.get("effect") or _found_outside(place) or _leaked(place, output, since):
        return "effect", effect
    if not is_over:
        return "time-out", output[-300:]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ("time-out" if number == signal.SIGXCPU else "crash"), signal.Signals(number).name
    if any(word in output for word in _NO_MEMORY):
        return "memory", _tail(output)
    if "Traceback (most recent call last)" in output or "traceback" in told:
        return "traceback", told.get("traceback") or _tail(output)
    return _by_code(os.WEXITSTATUS(status), output, told)


def _by_code(code: int, output: str, told: dict[str, str]) -> tuple[Outcome, str]:
    """A process that has ended by itself, without a traceback."""
    if code == 0:
        return "accepted", told.get("launched", "")
    if named := _NAMED.search(output):
        return "refused", named[1]
    return ("refused", "by usage") if code == 2 and output else ("traceback", f"exit code {code}, {_tail(output)}")


def _found_outside(place: Place) -> str | None:
    changed = place.changed_outside()
    return None if changed is None else f"changed outside: {changed}"


def _tail(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-4:])[-700:]


def _leaked(place: Place, output: str, since: float) -> str | None:
    # Paths are shown in full wherever they come from: a message about a folder has to name it.
    if found := re.search(rf"(?<!/){re.escape(SECRET)}", output):
        return f"a secret was shown: {_around(output, found.start())}"
    if found := _TERMINAL.search(output):
        return f"a control character was shown: {_around(output, found.start())}"
    for path in place.inside.rglob("*"):
        if (
            path.is_file()
            and not path.is_symlink()
            and since < path.stat().st_mtime
            and path.stat().st_size < _SCANNED_BYTES
            and SECRET.encode() in path.read_bytes()
        ):
            return f"a secret was written to {path.relative_to(place.inside)}"
    return None


def _around(text: str, at: int) -> str:
    return repr(text[max(at - 100, 0) : at + 60])


def _live(item: Input, place: Place, pipe: int) -> None:
    """The life of the fork."""
    code = 1

    def report(kind: str, detail: str) -> None:
        os.write(pipe, json.dumps([kind, detail[:2000]]).encode() + b"\n")

    try:
        os.setsid()
        atexit._clear()  # what was registered before is for the process that lives on
        _redirect(place)
        _surroundings(item, place)
        _limits(max(int(item.seconds / 3), 1))
        try:
            item.prepare(place)
        except BaseException:
            report("broken", f"{item.title}: {traceback.format_exc()}")
            os._exit(1)
        _watch_starts()
        sys.addaudithook(Watchdog(report, place.writable))
        code = _carry_out([place.filled(word) for word in item.argv], report)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        report("traceback", traceback.format_exc()[-1500:])
    finally:
        os._exit(code)


def _redirect(place: Place) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(place.base / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _surroundings(item: Input, place: Place) -> None:
    os.chdir(place.inside)
    tempfile.tempdir = None
    own = {"HOME": place.base / "home", "TMPDIR": place.base / "tmp", "RUNNER_CACHE": place.base / "cache"}
    own |= {"XDG_CACHE_HOME": place.base / "cache", "TORCH_HOME": place.base / "cache"}
    os.environ.update({name: str(folder) for name, folder in own.items()})
    os.environ.update({"RUNNER_SECRET": SECRET, "COLUMNS": "120"})
    os.environ.update({name: place.filled(value) for name, value in item.env.items()})


def _limits(cpu_seconds: int) -> None:
    status = Path("/proc/self/status").read_text()
    taken = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]
    spent = int(time.process_time()) + 1  # a fork counts anew, but has prepared its input
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MORE_BYTES, taken + MORE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (spent + cpu_seconds, spent + cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch_starts() -> None:
    """`multiprocessing` starts interpreters by a function that Python does not audit."""
    import _posixsubprocess

    start = _posixsubprocess.fork_exec

    def audited(argv: list[bytes], *more: object) -> int:
        sys.audit("hostile.fork_exec", argv)
        return start(argv, *more)

    _posixsubprocess.fork_exec = audited


def _carry_out(argv: list[str], report: Callable[[str, str], None]) -> int:
    import runner
    from runner.__main__ import main
    from runner.base import console
    from runner.base.errors import RunnerError

    _nothing_is_trained(argv[0])
    if argv[0] not in ("load_model", "load_config"):
        sys.argv = ["runner", *argv]
        try:
            return main()
        except SystemExit as end:  # of Hydra's own flags
            return end.code if isinstance(end.code, int) else 1
    try:
        runner.load_model(argv[1]) if argv[0] == "load_model" else runner.load_config(argv[1:])
    except RunnerError as error:
        console.show_error(error)
        return 2
    return 0


def _nothing_is_trained(command: str) -> None:
    """What counts is what comes before a training; only `resume` goes on, as it reads what lies in the folder."""
    import runner.launch
    import runner.tools.report
    from runner.launch.slurm import Submission

    runner.tools.report._explain = lambda *_: None  # `report` draws it in inputs of its own
    if command not in ("resume", "evaluate"):
        runner.launch.launch = lambda *_, **__: Submission(job_id="0", run_dir=Path())
