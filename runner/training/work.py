"""What the processes of a group do once they have met: train, or evaluate. Imports no torch before they do it."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from runner.base.console import LOGGER, log_to_file
from runner.base.process import collection_paused, freed_memory_kept, heap_set_aside
from runner.config.schema import Config
from runner.run.run_folder import RunFolder, read_record
from runner.training.attempt import Attempt, Hooks

if TYPE_CHECKING:
    from runner.base.stop import StopRequest
    from runner.data.splits import Splits
    from runner.dist.collectives import DistContext
    from runner.evaluation.subject import Subject
    from runner.training.train import RunResult

Result = TypeVar("Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class Work(Protocol[_Result_co]):
    """Plain values that say what is to be done; they travel to the processes by pickle."""

    @property
    def num_earlier(self) -> int:
        """Attempts that run.json held before this one; one that ends before its own is recorded leaves it alone."""

    @property
    def if_cut(self) -> str:
        """A sentence on what stands, and how to go on, for whoever's work was ended by force."""

    def carry_out(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> _Result_co:
        """Do it, as one of the processes.

        Args:
            config: complete and checked, with resolved paths.
            folder: where it writes; `logs/` in it takes the output of the processes.
            splits: the images.
            dist: place of this process among others, which all call this; by default it is alone.
            stop: tells that a stop is wanted; by default signals to this process do.

        Raises:
            StoppedOnRequest: after a request to stop, with nothing half-written.
        """

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Leave in the folder what explains a failure of many processes, once it is recorded and they are gone."""

    def continued(self) -> Work[_Result_co]:
        """The same for a group that was started again in a folder where it had begun."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Train, evaluate and package one experiment: one attempt at a run."""

    attempt: Attempt
    hooks: Hooks = field(default_factory=Hooks)

    @property
    def num_earlier(self) -> int:
        """Attempts that run.json counts already."""
        return self.attempt.num_earlier

    @property
    def if_cut(self) -> str:
        """What stands when it was ended by force, and how to continue."""
        return "The checkpoints so far stand: resume goes on from the newest"

    def carry_out(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> RunResult:
        """Train; see :func:`runner.training.train.train`."""
        is_first = "runner.training.train" not in sys.modules  # an earlier training in this process has left garbage
        with collection_paused():
            from runner.training.train import train  # noqa: PLC0415 - torch only once config and data are good

        with heap_set_aside() if is_first else nullcontext(), freed_memory_kept():
            return train(config, folder, splits, self.attempt, self.hooks, dist=dist, stop=stop)

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Write the report of a run that this attempt has begun or continued, where this machine has its folder."""
        if (folder / "run.json").is_file() and read_record(folder)["attempts"] > self.num_earlier:
            self.hooks.write_report(folder, splits)

    def continued(self) -> Training:
        """The attempt that goes on in the folder where this one had begun."""
        return replace(self, attempt=replace(self.attempt, is_resumed=True))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluate verified weights on the images that stand for the validation split."""

    subject: Subject
    weights_file: Path
    num_earlier: int = 0
    if_cut: str = "No result was written; evaluate again"

    @freed_memory_kept()
    def carry_out(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> dict[str, Any]:
        """Evaluate and write the result to `folder`; see :func:`runner.evaluation.split.evaluate_split`."""
        from runner.base.stop import StopRequest  # noqa: PLC0415
        from runner.dist.collectives import single_process  # noqa: PLC0415
        from runner.dist.device import agreed_precision, choose_device, describe_device, set_determinism  # noqa: PLC0415
        from runner.evaluation.split import evaluate_split, tell, tell_classes  # noqa: PLC0415
        from runner.training.assemble_trained import assemble_evaluation  # noqa: PLC0415 - torch is imported only once all is good
        from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_too_large, device_errors_named  # noqa: PLC0415

        dist = dist or single_process(choose_device(config.trainer))
        precision = agreed_precision(config.trainer, dist)
        set_determinism(deterministic=config.trainer.deterministic)
        with ExitStack() as stack:
            log = RunFolder(folder).log_file(dist.rank)
            stack.enter_context(log_to_file(log))
            stop = stop or stack.enter_context(StopRequest())
            LOGGER.info(
                "weights     {checkpoint}, epoch {epoch}, {kind}: %s".format_map(self.subject.weights),
                self.weights_file,
            )
            LOGGER.info("device      %s, %s (%s)", describe_device(dist.device), precision.name, precision.reason)
            with device_errors_named(dist.device, BEFORE_THE_FIRST_BATCH):
                scorer, share = assemble_evaluation(
                    config, splits, self.subject.split, self.weights_file, dist=dist, precision=precision
                )
            with device_errors_named(dist.device, batch_too_large("data.batch_size", config.data.batch_size)):
                metrics = evaluate_split(
                    scorer,
                    share,
                    subject=self.subject,
                    classes=splits.classes,
                    folder=folder,
                    stop=stop,
                )
            if dist.is_main:
                tell(metrics)
                tell_classes(metrics, folder)
        return metrics

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Its logs are all that it leaves."""

    def continued(self) -> Evaluation:
        """An evaluation begins anew: it has no state between images."""
        return self
