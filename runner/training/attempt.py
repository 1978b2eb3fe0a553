"""What the processes of a launch do: one attempt at a training, or an evaluation. Imports no torch at first."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from runner.base.console import LOGGER, log_to_file
from runner.base.process import freed_memory_kept, gc_frozen, gc_paused
from runner.config.schema import Config
from runner.run.package import add_reference
from runner.run.run_folder import RunFolder, read_record

if TYPE_CHECKING:
    from runner.base.stop import StopRequest
    from runner.data.splits import Splits
    from runner.dist.collectives import DistContext
    from runner.evaluation.evaluation_inputs import EvaluationInputs
    from runner.training.train import RunResult


Result = TypeVar("Result")
_Result_co = TypeVar("_Result_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a training was started: a run begins once and may be resumed any number of times."""

    overrides: tuple[str, ...] = ()
    """The typed overrides, for run.json."""
    command: str = field(default_factory=lambda: shlex.join(sys.orig_argv))
    """The whole command line, for run.json."""
    is_resumed: bool = False
    """Whether the run is continued in its folder: from the newest valid checkpoint, or from the start without one."""
    num_earlier: int = 0
    """Attempts that run.json counts already; until it counts one more, this one has changed nothing."""
    notes: tuple[str, ...] = ()
    """Sentences for the log on what was changed in the config for this attempt."""
    may_change_data: bool = False
    """Whether the run may continue with other images of the same classes."""
    may_download: bool = True
    """Whether weights that `model.weights` names may be downloaded; those that only a saved config names may not."""
    repeats: str | None = None
    """The folder of the run whose config this one repeats, for run.json."""


class Pruner(Protocol):
    """Ends trials of a sweep early."""

    def decision(self, run_dir: Path, epoch: int) -> str | None:
        """Why the run in this folder ends after so many epochs; None if it continues."""


def _do_nothing(*_: object) -> None:
    """The default hook; a lambda could not be pickled."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a training calls in rooms above it; pickled for other processes."""

    write_report: Callable[[Path, Splits], None] = _do_nothing
    """Called with the run folder and the data set after the run has completed or failed."""
    after_epoch: Callable[[Path], None] = _do_nothing
    """Called with the run folder after the metrics of an epoch were written to it."""
    pruner: Pruner | None = None
    """Asked between two epochs; None without one."""
    after_job: Callable[[Path], None] = _do_nothing
    """Called with the run folder at the end of a submitted job, also after a failure."""


class Work(Protocol[_Result_co]):
    """What the processes of a launch do; pickled for other processes."""

    @property
    def num_earlier(self) -> int:
        """Attempts in run.json before this one; a failure before this one is counted leaves run.json as it is."""

    @property
    def advice_if_killed(self) -> str:
        """For the message when the process is killed: a sentence on what is saved and how to continue."""

    def run(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> _Result_co:
        """Do the work, as one of the processes.

        Args:
            config: complete and checked, with resolved paths.
            folder: the output folder; `logs/` in it has the output of the processes.
            splits: the images.
            dist: rank and process group, where several processes call this; by default this process works alone.
            stop: tells whether to stop; by default signals to this process do.

        Raises:
            StoppedOnRequest: after a request to stop; no file is half-written.
        """

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Write a report to the folder, after several processes failed and run.json names the failure."""

    def continued(self) -> Work[_Result_co]:
        """The work after a restart of the processes, in the folder where they had begun it."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One attempt to train, evaluate and package an experiment."""

    attempt: Attempt
    hooks: Hooks = field(default_factory=Hooks)

    advice_if_killed: str = "The checkpoints so far are intact: resume continues from the newest"

    @property
    def num_earlier(self) -> int:
        """Attempts that run.json counts already."""
        return self.attempt.num_earlier

    def run(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> RunResult:
        """Train; see :func:`runner.training.train.train`."""
        is_first = "runner.training.train" not in sys.modules  # an earlier training in this process left garbage
        with gc_paused():
            from runner.training.train import train  # noqa: PLC0415 - torch only once config and data are good

        with gc_frozen() if is_first else nullcontext(), freed_memory_kept():
            return train(config, folder, splits, self.attempt, self.hooks, dist=dist, stop=stop)

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Write the report of the run, if this attempt has changed it and this machine has its folder."""
        if (folder / "run.json").is_file() and read_record(folder)["attempts"] > self.num_earlier:
            self.hooks.write_report(folder, splits)

    def continued(self) -> Training:
        """The attempt that resumes this one after a restart."""
        return replace(self, attempt=replace(self.attempt, is_resumed=True))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation of verified weights on the images in `splits.val`, whichever split of the data set they are."""

    inputs: EvaluationInputs
    weights_file: Path
    package: Path | None = None
    """A package that gets the profile of the images as its reference, as it has none."""
    num_earlier: int = 0
    advice_if_killed: str = "No result was written; evaluate again"

    @freed_memory_kept()
    def run(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> dict[str, Any]:
        """Evaluate and write the result to `folder`; see :func:`runner.evaluation.measures.evaluate_split`."""
        from runner.base.stop import StopRequest  # noqa: PLC0415
        from runner.dist.collectives import single_process  # noqa: PLC0415
        from runner.dist.device import agreed_precision, choose_device, describe_device, set_determinism  # noqa: PLC0415
        from runner.evaluation.measures import evaluate_split, log_per_class, log_summary  # noqa: PLC0415
        from runner.training.assemble_trained import assemble_evaluation  # noqa: PLC0415 - torch only after all checks
        from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_size_advice, named_device_errors  # noqa: PLC0415

        dist = dist or single_process(choose_device(config.trainer))
        precision = agreed_precision(config.trainer, dist)
        set_determinism(deterministic=config.trainer.deterministic)
        with ExitStack() as stack:
            log = RunFolder(folder).log_file(dist.rank)
            stack.enter_context(log_to_file(log))
            stop = stop or stack.enter_context(StopRequest())
            LOGGER.info(
                "weights     {checkpoint}, epoch {epoch}, {kind}: %s".format_map(self.inputs.weights),
                self.weights_file,
            )
            LOGGER.info("device      %s, %s (%s)", describe_device(dist.device), precision.name, precision.reason)
            with named_device_errors(dist.device, BEFORE_THE_FIRST_BATCH):
                scorer, split = assemble_evaluation(
                    config, splits, self.inputs.split, self.weights_file, dist=dist, precision=precision
                )
            shortage = batch_size_advice("data.batch_size", config.data.fixed_batch_size)
            with named_device_errors(dist.device, shortage):
                metrics = evaluate_split(
                    scorer,
                    split,
                    inputs=self.inputs,
                    classes=splits.classes,
                    folder=folder,
                    stop=stop,
                )
            if dist.is_main:
                log_summary(metrics)
                log_per_class(metrics, folder)
                if self.package is not None:
                    add_reference(self.package, metrics["profile"])
                    LOGGER.info("reference   %s: drift compares with it", self.package)
        return metrics

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Write nothing: an evaluation leaves only its logs."""

    def continued(self) -> Evaluation:
        """The evaluation itself, which starts again from the first image."""
        return self
