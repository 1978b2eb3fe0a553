"""Error files of failed processes, the first of several failures, and its record in run.json."""

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
    error_named,
)
from runner.base.files import write_json
from runner.run import run_folder
from runner.run.run_folder import RunFolder, read_record

_SECONDS_TO_DIE = 1.0  # a dying process closes its connections before it releases its lock on the run
_POLL_SECONDS = 0.05
# In messages of gloo and NCCL when another process is gone; they have no exception type for it.
_SIGNS_OF_A_LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
# In messages of NCCL on faults of its own process: a GPU that two processes share, too little memory, the driver.
_SIGNS_OF_ONES_OWN = ("ncclInvalidUsage", "ncclInvalidArgument", "ncclUnhandledCudaError")


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """Why a process failed: the content of its error file."""

    rank: int
    host: str
    name: str
    """Stable name of the error, or the class of the exception."""
    message: str
    trace: str
    """The traceback."""
    exit_code: int
    is_echo: bool
    """Whether the process failed only because another one did."""
    moment: float
    """Seconds since 1970, by the process's own machine."""
    log: str | None
    """Path of its log."""

    def write(self, folder: Path) -> None:
        """Write the error file of this rank; if that fails, only warn, so that the first error stays visible."""
        try:
            write_json(folder / f"rank_{self.rank}.error.json", asdict(self))
        except OutputError as second:
            LOGGER.warning("%s could not write its error file: %s", self.where, second)

    @property
    def is_final(self) -> bool:
        """Whether a restart would fail in the same way: after each named error, unless it is the loss of a process."""
        error = error_named(self.name, "")
        return error is not None and not isinstance(error, RankFailedError | RankLostError | StalledError)

    @property
    def where(self) -> str:
        """Rank and host, for messages."""
        return f"rank {self.rank} on {self.host}"

    def as_error(self) -> RunnerError:
        """The error for the launcher to raise: a named one as it was, anything else as RankFailedError."""
        error = error_named(self.name, self.message)
        if error is not None and not isinstance(error, RankFailedError):
            return error
        log = f"; its log: {self.log}" if self.log else ""
        what = f"failed: {self.name}: {self.message}" if error is None else self.message
        return RankFailedError(f"{self.where} {what}{log}")


def record_failure(rank: int, error: BaseException, log: Path | None) -> FailureRecord:
    """Describe an error that ends this process."""
    cause = as_lost_peer(error)
    return FailureRecord(
        rank=rank,
        host=socket.gethostname(),
        name=cause.name if isinstance(cause, RunnerError) else type(cause).__name__,
        message=str(cause),
        trace="".join(traceback.format_exception(error)),
        exit_code=cause.exit_code if isinstance(cause, RunnerError) else EXIT_FAILURE,
        is_echo=isinstance(cause, RankLostError),
        moment=time.time(),
        log=str(log) if log else None,
    )


def as_lost_peer(error: BaseException) -> BaseException:
    """The error itself, or a RankLostError where a collective failed because another process is gone."""
    is_of_collective = isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_A_LOST_PEER)
    )
    if not is_of_collective or any(sign in str(error) for sign in _SIGNS_OF_ONES_OWN):
        return error
    first, *_ = str(error).strip().splitlines()
    # The first line of NCCL's message names a place in its code, the last ones the reason.
    _, _, why = str(error).partition("Last error:")
    reason = f"{first}; {' '.join(why.split())}" if why.strip() else first
    lost = RankLostError(
        "lost contact with another process of the run, which died, hangs or can't be reached; its own log or machine "
        f"says why ({reason})"
    )
    lost.__cause__ = error
    return lost


def first_failure(folders: Iterable[Path]) -> FailureRecord | None:
    """The earliest failure; one that another process caused only where there is no other."""
    files = [file for folder in folders for file in folder.glob("rank_*.error.json")]
    records = [FailureRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return min(records, key=lambda record: (record.is_echo, record.moment), default=None)


def correct_record(run_dir: Path, failure: FailureRecord, num_earlier: int) -> None:
    """Write the failure that ended the run to run.json, where rank 0 wrote only a failure that another caused, or none.

    Of several machines that share the folder, the first one that knows the cause writes it. An attempt that failed
    before it changed the run leaves run.json as it was.

    Args:
        run_dir: the run folder.
        failure: the cause.
        num_earlier: attempts in run.json before this one.
    """
    if not (run_dir / "run.json").is_file():
        return
    folder = RunFolder(run_dir)
    folder.record = read_record(run_dir)
    known = folder.record.get("error") or {}
    is_cause = "host" in known and known["name"] != RankLostError.__name__
    has_begun = folder.record["attempts"] > num_earlier
    if has_begun and folder.record["status"] in ("running", "failed") and not is_cause:
        error = {"name": failure.name, "message": failure.message, "rank": failure.rank, "host": failure.host}
        _end_failed(folder, error)


def record_lost_owner(run_dir: Path, echo: FailureRecord) -> None:
    """Write to run.json that rank 0, which else writes it, was killed; does nothing while rank 0 is alive.

    Under torchrun, srun and mpirun another rank has to do this, since those programs know nothing of run.json.

    Args:
        run_dir: the run folder, as this machine sees it.
        echo: the failure of the rank that noticed.
    """
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while run_folder.is_alive(run_dir):
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)
    if (run_dir / "run.json").is_file() and read_record(run_dir)["status"] == "running":
        folder = RunFolder(run_dir)
        folder.record = read_record(run_dir)
        message = f"rank 0 ended without an error message; {echo.where} lost contact with it"
        _end_failed(folder, {"name": RankFailedError.__name__, "message": message, "rank": 0})


def _end_failed(folder: RunFolder, error: dict[str, Any]) -> None:
    try:
        folder.end("failed", error)
    except OutputError as second:  # must not hide the first error
        LOGGER.warning("the failure could not be written to run.json: %s", second)


def log_failure(record: FailureRecord) -> None:
    """Log the traceback of a failure that has no named error, else the rank that it happened in."""
    if record.trace and error_named(record.name, "") is None:
        LOGGER.error("%s:\n%s", record.where, record.trace.rstrip())
    elif record.name != RankFailedError.__name__:
        LOGGER.error("%s ended the run; its log: %s", record.where, record.log or "none yet")
