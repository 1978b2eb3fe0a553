"""Runs the commands of docs/tutorial.md in order, as a reader types them, and writes what they show into the page.

    python -m tests.tutorial       runs them in a new folder and rewrites the outputs that have changed (two minutes)

What the page may hold, besides text:

- A block `console`: lines after `$ ` are commands, one shell runs them all; the lines below a command are its output. A
  command that fails is followed by `$ echo $?`. Lines after `node0$ ` and `node1$ ` are typed at the same time, on two
  machines, which this one plays; the output is that of the machine that has rank 0, the longer one.
- Before it `<!-- only: one | other -->`: of the output only lines with one of these texts are shown, `…` for others.
- A block `yaml` whose first comments name a file, `# conf/experiment/sky.yaml`: it is written.
- Other blocks are neither run nor written.

What is shown is what was printed, but for the names of folders, which would be others each time (`Names`), and lines of
progress, which a terminal overwrites. What else depends on the clock, the machine or the rounding of its processor is
ignored where two outputs are compared (`comparable`), so an output is rewritten only when something else has changed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/tutorial.md"
HOME = "/home/you/sky"
_BLOCK = re.compile(r"^(?:<!-- only: (?P<only>.+?) -->\n\n?)?```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
_PROMPT = re.compile(r"^(?P<machine>node\d)?\$ (?P<command>.+)$")
_FOLDER = re.compile(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-[0-9a-f]{6}")  # of a run, a sweep or a check
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PROGRESS = re.compile(r"(?:importing|checking|looking|scoring|evaluating|epoch \d+/\d+) .*\d+/\d+.*\n")
_OF_THE_MACHINE = re.compile(r"(?:launch|cache|device|threads|precision|backend) .*\n")
_RENDEZVOUS = "node0:29400"


@dataclass
class Names:
    """Names of folders on the page for those of this time, in the order in which they appear."""

    place: Path
    rendezvous: str
    shown_by_real: dict[str, str] = field(default_factory=dict)

    def shown(self, text: str) -> str:
        """An output with the names of the page."""
        text = text.replace(str(self.place), HOME).replace(self.rendezvous, _RENDEZVOUS)
        return _MOMENT.sub("2026-11-20 10:00:00", _FOLDER.sub(self._shown_folder, text))

    def real(self, command: str) -> str:
        """A command of the page with the names of this time."""
        for real, shown in self.shown_by_real.items():
            command = command.replace(shown, real)
        return command.replace(_RENDEZVOUS, self.rendezvous)

    def _shown_folder(self, match: re.Match[str]) -> str:
        number = len(self.shown_by_real) + 1
        return self.shown_by_real.setdefault(match[0], f"2026-11-20/10-{number:02}-00-00000{number:x}")


class Shell:
    """One bash, which keeps variables and the exit code between commands."""

    def __init__(self, place: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "250",  # tables cut long cells, such as the path of the folder in which this runs
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.exit_code = 0

    def run(self, command: str) -> str:
        """What a command prints; its exit code is `exit_code`."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f'(exit {self.exit_code})\n{{ {command}\n}} </dev/null\necho "<<ended $?>>"\n')
        self._bash.stdin.flush()
        output = ""
        for line in self._bash.stdout:
            output += line
            if ended := re.search(r"<<ended (\d+)>>\n$", output):
                self.exit_code = int(ended[1])
                return output[: ended.start()]
        raise AssertionError(f"the shell itself has ended: {command}\n{output}")

    def close(self) -> None:
        """End the shell and what it has started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


def as_run(page: str, place: Path) -> str:
    """The page with the outputs of its commands, which are run in this empty folder."""
    subprocess.run([sys.executable, ROOT / "docs/draw_photos.py"], cwd=place, check=True)
    names, shell = Names(place, f"127.0.0.1:{free_port()}"), Shell(place)
    try:
        return _BLOCK.sub(lambda block: _block_as_run(block, names, shell), page)
    finally:
        shell.close()


def _block_as_run(block: re.Match[str], names: Names, shell: Shell) -> str:
    body = block["body"]
    named = re.match(r"(?:# @.*\n)?# (\S+\.yaml)\n", body) if block["kind"] == "yaml" else None
    if named is not None:
        file = names.place / named[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body, encoding="utf-8")
    if block["kind"] != "console":
        return block[0]
    commands = list(_commands(body))
    new = "".join(f"{command}\n{output}" for command, output in _outputs(commands, names, shell, block["only"]))
    return block[0] if comparable(new) == comparable(body) else block[0].replace(body, new)


def _commands(body: str) -> Iterator[str]:
    """Each line with a prompt, with the lines that a backslash at its end adds."""
    lines = iter(body.splitlines())
    for line in lines:
        if _PROMPT.match(line):
            command = line
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def _outputs(commands: list[str], names: Names, shell: Shell, only: str | None) -> Iterator[tuple[str, str]]:
    if commands[0].startswith("node0$ "):
        first, other = (names.real(command.partition("$ ")[2]) for command in commands)
        shell.run(f"{first} > node0.log 2>&1 & {other} > node1.log 2>&1 && wait $!")
        outputs = [(names.place / f"{name}.log").read_text(encoding="utf-8") for name in ("node0", "node1")]
        assert shell.exit_code == 0, "\n".join(outputs)
        yield "\n".join(commands), _shown(max(outputs, key=len), names, only)
        return
    for command, following in zip(commands, [*commands[1:], ""], strict=True):
        output = shell.run(names.real(command.removeprefix("$ ")))
        assert shell.exit_code == 0 or following == "$ echo $?", f"{command}\n{output}exit code {shell.exit_code}"
        yield command, _shown(output, names, only)


def _shown(output: str, names: Names, only: str | None) -> str:
    lines = [line for line in names.shown(output).splitlines(keepends=True) if not _PROGRESS.fullmatch(line)]
    if only is None:
        return "".join(lines)
    words = only.split(" | ")
    kept = [line if any(word in line for word in words) else "…\n" for line in lines]
    return "".join(line for line, before in zip(kept, ["", *kept], strict=False) if line != "…\n" or line != before)


def comparable(text: str) -> str:
    """A text without what depends on the clock, the machine and how its processor rounds.

    Of weights' SHA-256 remains which are the same; trials that run at once may end in any order.
    """
    known: dict[str, str] = {}
    lines = [line for line in text.splitlines(keepends=True) if not _OF_THE_MACHINE.fullmatch(line)]
    trials = iter(sorted(line for line in lines if line.startswith("trial ")))
    text = "".join(next(trials) if line.startswith("trial ") else line for line in lines)
    text = re.sub(r"\b[0-9a-f]{64}\b", lambda match: known.setdefault(match[0], f"SHA{len(known)}"), text)
    text = re.sub(r"^ +(\d+/\d+) .*$", r"\1", text, flags=re.M)  # the row of an epoch
    text = re.sub(r"\b\d{4}-\d{8}\b", "CHECKPOINT", text)
    text = re.sub(r"(?<=epoch )\d+(?!/)|(?<=  )\d+(?= +died)", "#", text)  # the best one; that of a run that was killed
    text = re.sub(r"\d[\d,]*\.\d+(e-?\d+)?%?|\b\d+e-\d+\b", "#", text)
    text = re.sub(r"(?:\d+ min )?[\d,]+ (images/s|kB|MB|seconds|s)\b", r"# \1", text)
    return re.sub(r"[ \t]+", " ", text)


def free_port() -> int:
    """A port of the loopback interface that no program listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(as_run(PAGE.read_text(encoding="utf-8"), Path(folder).resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()
