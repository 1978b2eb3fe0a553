"""How a process that failed says why, and which of several failures came first."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed

from runner.base.console import LOGGER
from runner.base.errors import (
    EXIT_FAILURE,
    OutputError,
    RankFailedError,
    RankLostError,
    RunnerError,
    StalledError,
    named,
)
from runner.base.files import write_json
from runner.run import run_folder
from runner.run.run_folder import RunFolder, read_record

_SECONDS_TO_DIE = 1.0  # between the end of its connections and that of its lock on the run
_POLL_SECONDS = 0.05
# What gloo and NCCL say when the other end is gone; they have no exception of their own for it.
_SIGNS_OF_A_LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
# What NCCL says when nobody is: of a GPU that two processes share, of its memory, of a driver.
_SIGNS_OF_ONES_OWN = ("ncclInvalidUsage", "ncclInvalidArgument", "ncclUnhandledCudaError")


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """Why a process failed; its error file."""

    rank: int
    host: str
    name: str
    """Stable name of the error, or the exception's class."""
    message: str
    trace: str
    """Its traceback."""
    exit_code: int
    is_echo: bool
    """Whether it only failed because another process did."""
    moment: float
    """When, in seconds since 1970, by this machine's clock."""
    log: str | None
    """Where all of its output is."""

    def write(self, folder: Path) -> None:
        """Write the error file of this rank; that it can't be written hides no error: the log says so."""
        try:
            write_json(folder / f"rank_{self.rank}.error.json", asdict(self))
        except OutputError as second:
            LOGGER.warning("%s could not leave word of its failure: %s", self.where, second)

    @property
    def is_final(self) -> bool:
        """Whether the same would happen again: a named error other than the end of a process."""
        told = named(self.name, "")
        return told is not None and not isinstance(told, RankFailedError | RankLostError | StalledError)

    @property
    def where(self) -> str:
        """The process in words."""
        return f"rank {self.rank} on {self.host}"

    def as_error(self) -> RunnerError:
        """The error to end with: a named one as it was, anything else as the failure of a process."""
        told = named(self.name, self.message)
        if told is not None and not isinstance(told, RankFailedError):
            return told
        log = f"; its log: {self.log}" if self.log else ""
        what = f"failed: {self.name}: {self.message}" if told is None else self.message
        return RankFailedError(f"{self.where} {what}{log}")


def record_failure(rank: int, error: BaseException, log: Path | None) -> FailureRecord:
    """The record of an error that ends a process."""
    told = as_lost_peer(error)
    return FailureRecord(
        rank=rank,
        host=socket.gethostname(),
        name=told.name if isinstance(told, RunnerError) else type(told).__name__,
        message=str(told),
        trace="".join(traceback.format_exception(error)),
        exit_code=told.exit_code if isinstance(told, RunnerError) else EXIT_FAILURE,
        is_echo=isinstance(told, RankLostError),
        moment=time.time(),
        log=str(log) if log else None,
    )


def as_lost_peer(error: BaseException) -> BaseException:
    """The error itself, or a RankLostError where an exchange failed because another process is gone."""
    is_of_exchange = isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_A_LOST_PEER)
    )
    if not is_of_exchange or any(sign in str(error) for sign in _SIGNS_OF_ONES_OWN):
        return error
    first, *_ = str(error).strip().splitlines()
    # The first line of NCCL's says where in its code, the last ones why.
    _, _, why = str(error).partition("Last error:")
    reason = f"{first}; {' '.join(why.split())}" if why.strip() else first
    lost = RankLostError(
        "lost contact with another process of the run, which died, hangs or can't be reached; its own log or machine "
        f"says why ({reason})"
    )
    lost.__cause__ = error
    return lost


def first_failure(folders: Iterable[Path]) -> FailureRecord | None:
    """The failure that came first; one that others caused only where there is no other."""
    files = [file for folder in folders for file in folder.glob("rank_*.error.json")]
    records = [FailureRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return min(records, key=lambda record: (record.is_echo, record.moment), default=None)


def correct_record(run_dir: Path, failure: FailureRecord, num_earlier: int) -> None:
    """Let run.json name the failure that ended the run; rank 0 may only have met its echo, or been killed.

    Of several machines that share the folder, the first one to know the cause says it. An attempt that was refused
    before it went on leaves the record as it was.

    Args:
        run_dir: the run folder.
        failure: what ended the run.
        num_earlier: attempts that were recorded before this one.
    """
    if not (run_dir / "run.json").is_file():
        return
    folder = RunFolder(run_dir)
    folder.record = read_record(run_dir)
    known = folder.record.get("error") or {}
    is_cause = "host" in known and known["name"] != RankLostError.__name__
    has_begun = folder.record["attempts"] > num_earlier
    if has_begun and folder.record["status"] in ("running", "failed") and not is_cause:
        told = {"name": failure.name, "message": failure.message, "rank": failure.rank, "host": failure.host}
        _end_failed(folder, told)


def record_lost_owner(run_dir: Path, echo: FailureRecord) -> None:
    """Let run.json say that rank 0, which would keep it true, has ended without a word.

    Under torchrun, srun and mpirun nobody else can: they don't know of the run. Where rank 0 lives it is left alone.

    Args:
        run_dir: the run folder, as this machine sees it.
        echo: how another rank noticed.
    """
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while run_folder.is_alive(run_dir):
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)
    if (run_dir / "run.json").is_file() and read_record(run_dir)["status"] == "running":
        folder = RunFolder(run_dir)
        folder.record = read_record(run_dir)
        message = f"rank 0 ended without a word; {echo.where} lost contact with it"
        _end_failed(folder, {"name": RankFailedError.__name__, "message": message, "rank": 0})


def _end_failed(folder: RunFolder, error: dict[str, Any]) -> None:
    try:
        folder.end("failed", error)
    except OutputError as second:  # it is no reason to tell less of the first one
        LOGGER.warning("run.json may not say so: %s", second)


def show(record: FailureRecord) -> None:
    """Show the traceback of a failure that is no named error, as the last thing before the error itself."""
    if record.trace and named(record.name, "") is None:
        LOGGER.error("%s:\n%s", record.where, record.trace.rstrip())
    elif record.name != RankFailedError.__name__:
        LOGGER.error("%s ended the run; its log: %s", record.where, record.log or "none yet")
