"""An audit hook that reports what an input must never bring about, and ends the process before it happens.

It sees what Python itself does. What C code opens is seen from outside: `harness.py` looks whether the bait is still as
it was.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

EXIT_EFFECT = 97
ROOT = Path(__file__).resolve().parents[2]
_CODE = tuple(
    f"{os.path.realpath(folder)}{os.sep}"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        *(ROOT / name for name in ("runner", "hydra_plugins", "tests")),
    }
)
"""Where code may come from: Python, what is installed, the project."""
_MAKERS_OF_CODE = (
    *("dataclasses.py", "collections/__init__.py", "enum.py", "typing.py", "inspect.py", "functools.py", "timeit.py"),
    *("jinja2/environment.py", "attr/_make.py", "numpy/ma/core.py", "pyparsing/core.py", "torch/fx/graph_module.py"),
    *("scipy/_lib/_util.py", "torch/_jit_internal.py", "torch/_sources.py", "torch/package/package_importer.py"),
    *("sqlalchemy/util/langhelpers.py", "mako/template.py", "decorator.py"),
    *(
        "scipy/_lib/array_api_compat/_internal.py",
        "sklearn/externals/array_api_compat/_internal.py",
    ),
    *("numpy/f2py/auxfuncs.py", "multiprocessing/sharedctypes.py"),
)
"""Library code that compiles text of its own; what a text of others could reach there is seen as another effect."""
_OWN_MEMORY = ("/dev/shm/runner-", "/dev/shm/pym-")
"""Where the processes of a training share decoded images, and what `multiprocessing` shares."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_A_LOADER = ("GIT_", "LD_", "PYTHON", "DYLD_", "PATH", "HOME", "BASH_ENV")
_NEVER = (
    *(
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.forkpty",
        "pty.spawn",
        "os.startfile",
        "ftplib.connect",
    ),
    *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"),
    *("socket.getnameinfo", "urllib.Request", "webbrowser.open", "smtplib.connect"),
    *("http.client.connect", "telnetlib.Telnet.open", "sqlite3.enable_load_extension", "sqlite3.load_extension"),
)


def _callers() -> Iterable[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


def _comes_through(*places: str) -> bool:
    return any(frame.f_code.co_filename.endswith(places) for frame in _callers())


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return f"{path}{os.sep}".startswith(tuple(folders))


class Watchdog:
    """What this process may write, and what it reports."""

    def __init__(self, report: Callable[[str, str], None], writable: Iterable[Path]) -> None:
        self._report = report
        self._writable = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in writable)
        self._own = threading.local()
        self._checks: dict[str, Callable[..., str | None]] = {
            "open": self._open,
            "exec": self._exec,
            "import": self._import,
            "ctypes.dlopen": lambda name: self._import("", name),
            "marshal.loads": lambda *_: None if _comes_through("<frozen importlib._bootstrap_external>") else "code",
            "pickle.find_class": self._find_class,
            "subprocess.Popen": self._popen,
            "hostile.fork_exec": self._own_process,
            "os.fork": lambda: None if _comes_through("multiprocessing/popen_fork.py") else "a fork",
            "os.putenv": lambda name, _: self._variable(os.fsdecode(name)),
            "os.kill": lambda pid, number: None if pid == os.getpid() or number == 0 else str(pid),
            "os.killpg": lambda pid, number: str(pid),
            "socket.bind": lambda _, address: self._bind(address),
            "sqlite3.connect": lambda name: None if name == ":memory:" else self._target(name),
            **{name: lambda *args: repr(args)[:200] for name in _NEVER},
            "socket.connect": lambda _, address: self._connect(address),
            "socket.sendmsg": lambda _, address: None if address is None else repr(address),
            **{name: lambda path, *_: self._target(path) for name in ("os.chmod", "os.chown", "os.utime")},
            **{name: lambda path, *_: self._target(path) for name in ("os.truncate", "os.setxattr", "os.removexattr")},
            **dict.fromkeys(("os.remove", "os.rmdir"), self._entry),
            "os.mkdir": lambda path, _, at: None if Path(os.fsdecode(path)).is_dir() else self._entry(path, at),
            "os.symlink": lambda _, path, at: self._entry(path, at),
            "os.link": lambda _source, path, _from, at: self._entry(path, at),
            "os.rename": lambda source, path, at, to: self._entry(source, at) or self._entry(path, to),
        }

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for each event."""
        check = self._checks.get(event)
        if check is None or getattr(self._own, "is_judging", False):
            return
        self._own.is_judging = True
        try:
            found = check(*args)
            if found is not None:
                where = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in _callers()]
                self._report("effect", f"{event}: {found} at {' < '.join(where[:8])}")
                os._exit(EXIT_EFFECT)
        finally:
            self._own.is_judging = False

    def _variable(self, name: str) -> str | None:
        is_own = name in ("PYTHONSAFEPATH", "PYTHONWARNINGS") and _comes_through(
            str(ROOT / "runner/base/children.py"), str(ROOT / "runner/launch/elastic/shared_state.py")
        )
        return name if name.startswith(_OF_A_LOADER) and not is_own else None

    def _open(self, path: Any, mode: str | None, flags: int) -> str | None:
        if isinstance(path, int) or not (flags & _WRITING or (mode and set(mode) & set("wax+"))):
            return None
        return self._target(path)

    def _target(self, path: Any) -> str | None:
        """What is written through a link is written where that leads."""
        if isinstance(path, int):
            return None
        full = os.path.realpath(os.fsdecode(path))
        is_own = full == "/dev/null" or full.startswith(_OWN_MEMORY) or _is_within(full, self._writable)
        return None if is_own else full

    def _entry(self, path: Any, folder: int | None) -> str | None:
        """What is made, moved or removed is the entry itself, link or not."""
        entry = Path(os.fsdecode(path))
        if folder is not None and folder != -1:
            entry = Path(f"/proc/self/fd/{folder}") / entry
        if entry.name.startswith(".runner-probe-"):
            return None  # whether a folder that is typed can be written to; gone at once
        full = f"{os.path.realpath(entry.parent)}{os.sep}{entry.name}"
        return None if full.startswith(_OWN_MEMORY) or _is_within(full, self._writable) else full

    def _exec(self, code: Any) -> str | None:
        name = getattr(code, "co_filename", "")
        if name.startswith("<frozen ") or _is_within(os.path.realpath(name), _CODE):
            return None
        caller = next(iter(_callers())).f_code.co_filename
        is_made = caller.endswith(_MAKERS_OF_CODE) and _is_within(os.path.realpath(caller), _CODE)
        return None if is_made else f"code of {name}"

    def _import(self, module: str, file: str | None = None, *_: Any) -> str | None:
        if not isinstance(file, str | bytes) or os.sep not in os.fsdecode(file):
            return None
        full = os.path.realpath(os.fsdecode(file))
        return None if _is_within(full, (*_CODE, "/usr/lib/", "/lib/", "/usr/local/")) else f"{module} from {full}"

    def _find_class(self, module: str, name: str) -> str | None:
        own = _comes_through(
            "multiprocessing/connection.py", "multiprocessing/queues.py", "concurrent/futures/process.py"
        )
        return None if own else f"{module}.{name}"

    def _popen(self, program: Any, argv: Any, *_: Any) -> str | None:
        words = [os.fsdecode(word) for word in ([argv] if isinstance(argv, str | bytes) else argv)]
        if words[0] == "git" and _comes_through(str(ROOT / "runner/run/provenance.py")):
            return None
        return self._own_process(words)

    def _own_process(self, argv: Any) -> str | None:
        """A process of a training of ours: what was to be judged is over."""
        words = [os.fsdecode(word) for word in argv]
        if words[0] == sys.executable and _comes_through(
            str(ROOT / "runner/launch/elastic/agent.py"), str(ROOT / "runner/tools/sweep/pool.py")
        ):
            self._report("launched", " ".join(words))
            os._exit(0)
        if words[0] == sys.executable and "resource_tracker" in " ".join(words):
            return None
        return " ".join(words)[:300]

    def _connect(self, address: Any) -> str | None:
        """Processes of one loader hand each other memory through a socket in their temporary folder."""
        is_ours = isinstance(address, str) and _comes_through("torch/multiprocessing/reductions.py")
        return self._entry(address, None) if is_ours else repr(address)

    def _bind(self, address: Any) -> str | None:
        return self._entry(address, None) if isinstance(address, str | bytes) and address else repr(address)
