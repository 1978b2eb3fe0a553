"""Handlers that do on purpose what must be caught, each with the outcome that the harness has to find."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.harness import Outcome
from tests.hostile.place import SECRET, Input

_OUT = Path("../outside")


def _write_through_a_link() -> None:
    Path("link").symlink_to(_OUT / "victim")
    (Path("link") / "new").write_text("x")


def _write_without_python() -> None:
    import safetensors.torch
    import torch

    safetensors.torch.save_file({"a": torch.zeros(1)}, _OUT / "new")


def _import_from_here() -> None:
    Path("evil.py").write_text("")
    sys.path.insert(0, str(Path.cwd()))
    import evil  # type: ignore[import-not-found]  # noqa: F401


def _run_a_file() -> None:
    Path("evil.py").write_text("")
    runpy.run_path("evil.py")


def _leave_a_process() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    os._exit(0)


def _spawn_an_interpreter() -> None:
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)).start()


def _bind() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))


def _connect() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


def _endless() -> None:
    while True:
        pass


def _hidden(function: Callable[[], object]) -> Callable[[], None]:
    """Whoever swallows exceptions hides nothing."""

    def run() -> None:
        try:
            function()
        except BaseException:
            return

    return run


PLANTED: tuple[tuple[str, Outcome, Callable[[], object]], ...] = (
    ("nothing", "accepted", lambda: None),
    ("writing inside", "accepted", lambda: Path("fine").write_text("x")),
    ("reading outside", "accepted", (_OUT / "victim/keep.txt").read_text),
    ("exec of a text", "effect", lambda: exec("1")),
    ("eval of a text", "effect", _hidden(lambda: eval("1"))),
    ("code of a file", "effect", _run_a_file),
    ("an import from the working folder", "effect", _import_from_here),
    ("a library from the working folder", "effect", _hidden(lambda: ctypes.CDLL(str(Path("evil.so").absolute())))),
    ("unpickling", "effect", lambda: pickle.loads(pickle.dumps(os.getcwd))),
    ("a shell", "effect", lambda: os.system("true")),
    ("a process", "effect", _hidden(lambda: subprocess.run(["true"], check=False))),
    ("git from elsewhere", "effect", lambda: subprocess.run(["git", "--version"], check=False)),
    ("an interpreter", "effect", _spawn_an_interpreter),
    ("exec of a program", "effect", lambda: os.execv("/bin/true", ["true"])),
    ("posix_spawn", "effect", lambda: os.posix_spawn("/bin/true", ["true"], {})),
    ("a fork", "effect", os.fork),
    ("a signal to another", "effect", lambda: os.kill(os.getppid(), signal.SIGTERM)),
    ("a listening socket", "effect", _bind),
    ("a connection", "effect", _hidden(_connect)),
    ("a name that is looked up", "effect", lambda: socket.getaddrinfo("nosuch.invalid", 80)),
    ("a download", "effect", lambda: urllib.request.urlopen("http://127.0.0.1:9/")),
    ("LD_PRELOAD", "effect", lambda: os.environ.update(LD_PRELOAD="x")),
    ("a file outside", "effect", lambda: (_OUT / "new").write_text("x")),
    ("a file outside, opened below Python's files", "effect", lambda: os.open(_OUT / "new", os.O_CREAT | os.O_WRONLY)),
    ("a file outside, written by no Python", "effect", _write_without_python),
    ("a file behind a link", "effect", _write_through_a_link),
    ("a folder outside", "effect", (_OUT / "new").mkdir),
    ("a link outside", "effect", lambda: (_OUT / "new").symlink_to("x")),
    ("removing outside", "effect", (_OUT / "secret.txt").unlink),
    ("moving from outside", "effect", lambda: (_OUT / "secret.txt").rename("mine")),
    ("rights outside", "effect", lambda: (_OUT / "secret.txt").chmod(0o777)),
    ("a secret that is shown", "effect", lambda: sys.stderr.write(SECRET)),
    ("a secret that is written", "effect", lambda: Path("config.yaml").write_text(SECRET)),
    ("an escape sequence", "effect", lambda: sys.stdout.write("\x1b[2J")),
    ("a process that stays", "effect", _leave_a_process),
    ("a traceback", "traceback", lambda: {}["x"]),
    ("an end without a word", "traceback", lambda: sys.exit(3)),
    ("an endless loop", "time-out", _endless),
    ("a long sleep", "time-out", lambda: time.sleep(600)),
    ("a hog", "memory", lambda: bytearray(2 << 30)),
    ("a crash", "crash", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
)


def table() -> Iterator[Input]:
    """The handlers in place of the front door."""
    for title, _, handler in PLANTED:
        yield Input(title, ("validate",), lambda _, handler=handler: _planted(handler), seconds=3)


def _planted(handler: Callable[[], object]) -> None:
    from runner.cli import front_door

    def run(_: object) -> int:
        handler()
        return 0

    front_door.run = run
