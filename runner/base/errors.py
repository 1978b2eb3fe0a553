"""The errors that users see, each with a stable name and an exit code.

`docs/errors.md` lists them. Whatever is not a :class:`RunnerError` is a defect of the runner (exit code 1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.base.safe_text import without_secrets
from runner.base.untrusted import printable, shorten_middle

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED = 75
_MAX_VALUE = 120
Extra = Literal["slurm", "export", "parquet", "sweep", "timm", "mlflow", "wandb", "serve"]
"""The optional parts, which need packages of their own."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?P<range>[^;]*?)\s*;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")


class RunnerError(Exception):
    """Base of every named error; the class name is the stable name that is printed and recorded."""

    exit_code = EXIT_USER_ERROR

    @property
    def name(self) -> str:
        """The stable name, as printed in `runner: NAME: message`."""
        return type(self).__name__

    def __str__(self) -> str:
        return shorten_middle(super().__str__())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake of the user: which key, what was received, what is allowed, what to do."""

    key: str
    message: str
    value: object = None
    has_value: bool = False
    hint: str | None = None
    origin: str | None = None

    def __str__(self) -> str:
        key = printable(self.key)  # may come from another person's file
        if self.has_value:
            # As in YAML: null, true, [1, 2]; a text in quotes, which show its spaces.
            if isinstance(self.value, str):
                value = repr(without_secrets(self.value))
            else:
                value = json.dumps(self.value, ensure_ascii=False, default=str)
            key += f" = {value if len(value) <= _MAX_VALUE else value[: _MAX_VALUE - 1] + '…'}"
        text = f"{key}: {self.message}" if key else self.message
        if self.hint:
            text += f"; {self.hint}"
        if self.origin:
            text += f" [{self.origin}]"
        return text


class ProblemsError(RunnerError):
    """All mistakes of one stage, reported together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            super().__init__(str(self.problems[0]))
        else:
            lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
            super().__init__(f"{len(self.problems)} mistakes{lines}")

    def __reduce__(self) -> tuple[type[ProblemsError], tuple[tuple[Problem, ...]]]:
        """Pickle as the list of problems; errors are sent between processes."""
        return type(self), (self.problems,)


class UsageError(RunnerError):
    """The command line itself can't be understood."""


class ConfigError(ProblemsError):
    """The composed config breaks the schema."""


class PreflightError(ProblemsError):
    """Several mistakes of different kinds were found in the data, the weights or the machine."""


class NotLabeledDatasetError(RunnerError):
    """A training folder without class folders."""


class InvalidDatasetError(RunnerError):
    """A data set that can't be trained or evaluated on."""


class InvalidModelError(RunnerError):
    """A model that can't be built, or weights that don't fit it."""


class DeviceError(RunnerError):
    """This machine can't do what the config asks for."""


class DownloadError(RunnerError):
    """A download failed, or is larger than allowed."""


class OutputError(RunnerError):
    """A folder or file can't be written."""


class CheckpointError(RunnerError):
    """A checkpoint or model package is missing, damaged or does not fit."""


class RegistryError(RunnerError):
    """A registry of models has no such version, can't take one, or holds a damaged one."""


class NotBetterError(RunnerError):
    """A version is not better than the one that has the alias."""


class MissingPackageError(RunnerError):
    """An optional Python package that this command or option needs is not installed."""


class LaunchError(RunnerError):
    """The processes of a run can't be started or can't find each other."""


class TrackerError(RunnerError):
    """A tracker has not everything that the run folder has; `runs sync` sends the rest."""

    exit_code = EXIT_FAILURE


class NonFiniteLossError(RunnerError):
    """The training loss became infinite or not a number."""

    exit_code = EXIT_FAILURE


class ExportError(RunnerError):
    """A model can't be exported, or the exported file computes other outputs than PyTorch."""

    exit_code = EXIT_FAILURE


class ServeError(RunnerError):
    """The server can't listen at its address, or its workers can't be started."""


class DriftError(RunnerError):
    """Images have drifted from those that a model was validated on, and the call asks to fail then."""

    exit_code = EXIT_FAILURE


class StoppedOnRequest(RunnerError):
    """The run was stopped by a signal and has saved everything."""

    exit_code = EXIT_STOPPED


class RankFailedError(RunnerError):
    """A process of the run crashed or was killed."""

    exit_code = EXIT_FAILURE


class RankLostError(RunnerError):
    """Another process of the run died or can't be reached."""

    exit_code = EXIT_FAILURE


class StalledError(RunnerError):
    """A process of the run made no step for too long."""

    exit_code = EXIT_FAILURE


class GraceExceededError(RunnerError):
    """A run that was stopped by a signal had not saved everything after trainer.grace_seconds."""

    exit_code = EXIT_FAILURE


class TrialsFailedError(RunnerError):
    """Some trials of a sweep failed."""

    exit_code = EXIT_FAILURE


def error_named(name: str, message: str) -> RunnerError | None:
    """The error class of this name with this message, such as another process has reported; None: no such name."""
    kinds = [RunnerError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__name__ == name and kind is not RunnerError:
            is_list = issubclass(kind, ProblemsError)
            return kind([Problem(key="", message=message)]) if is_list else kind(message)
    return None


def how_to_install(extra: Extra) -> str:
    """The command that installs what a part needs, such as `pip install "optuna>=5,<6"`.

    It names the libraries and not `runner[sweep]`: on the package index, `runner` is somebody else's project.
    """
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - only for those who lack something

    try:
        declared = requires("runner") or []
    except PackageNotFoundError:  # a copy of the source that was never installed
        declared = []
    found = [match for match in map(_REQUIREMENT.fullmatch, declared) if match is not None and match["extra"] == extra]
    if not found:
        return f"pip install '.[{extra}]' in the runner's source"
    # `>=5,<6` reads better than the order in which packages keep it.
    libraries = (f'"{match["name"]}{",".join(sorted(match["range"].split(","), reverse=True))}"' for match in found)
    return f"pip install {' '.join(libraries)}"
