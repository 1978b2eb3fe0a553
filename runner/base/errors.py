"""The errors that a user can meet, each with a stable name and an exit code.

`docs/errors.md` lists them. Whatever is not a :class:`RunnerError` is a defect of the runner (exit code 1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.untrusted import printable, shortened

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED = 75


class RunnerError(Exception):
    """Base of every named error; the class name is the stable name that is printed and recorded."""

    exit_code = EXIT_USER_ERROR

    @property
    def name(self) -> str:
        """The stable name, as printed in `runner: NAME: message`."""
        return type(self).__name__

    def __str__(self) -> str:
        return shortened(super().__str__())


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
        key = printable(self.key)  # of a file that may come from elsewhere
        shown = f"{key} = {_shorten(self.value)}" if self.has_value else key
        text = f"{shown}: {self.message}" if shown else self.message
        if self.hint:
            text += f"; {self.hint}"
        if self.origin:
            text += f" [{self.origin}]"
        return text


def _shorten(value: object, limit: int = 120) -> str:
    # As YAML would have it: null, true, [1, 2]; a text in quotes, so that its spaces are seen.
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
        """Pickled by its problems: errors cross processes."""
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


class OutputError(RunnerError):
    """A folder or file can't be written."""


class CheckpointError(RunnerError):
    """A checkpoint or model package is missing, damaged or does not fit."""


class MissingPackageError(RunnerError):
    """A Python package is not installed that only this needs."""


class LaunchError(RunnerError):
    """The processes of a run can't be started or can't find each other."""


class NonFiniteLossError(RunnerError):
    """The training loss became infinite or not a number."""

    exit_code = EXIT_FAILURE


class ExportError(RunnerError):
    """A model can't be exported, or what was exported does not agree with it."""

    exit_code = EXIT_FAILURE


class StoppedOnRequest(RunnerError):
    """The run was asked to stop and has saved everything."""

    exit_code = EXIT_STOPPED


class RankFailedError(RunnerError):
    """A process of the run crashed or was killed."""

    exit_code = EXIT_FAILURE


class RankLostError(RunnerError):
    """Another process of the run died or can't be reached any more."""

    exit_code = EXIT_FAILURE


class StalledError(RunnerError):
    """A process of the run made no step for too long."""

    exit_code = EXIT_FAILURE


class GraceExceededError(RunnerError):
    """A run that was asked to stop had not saved everything when trainer.grace_seconds were over."""

    exit_code = EXIT_FAILURE


class TrialsFailedError(RunnerError):
    """Trials of a sweep failed; the others are done."""

    exit_code = EXIT_FAILURE


def named(name: str, message: str) -> RunnerError | None:
    """An error of this stable name, as another process met it; None where no named error has it."""
    kinds = [RunnerError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__name__ == name and kind is not RunnerError:
            is_list = issubclass(kind, ProblemsError)
            return kind([Problem(key="", message=message)]) if is_list else kind(message)
    return None
