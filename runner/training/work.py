"""What each process of `evaluate` does. Imports no torch before it does it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.allocator import freed_memory_kept
from runner.base.console import LOGGER, log_to_file
from runner.config.schema import Config
from runner.evaluation.subject import Subject
from runner.run.run_folder import RunFolder

if TYPE_CHECKING:
    from runner.base.stop import StopRequest
    from runner.data.splits import Splits
    from runner.dist.collectives import DistContext


@dataclass(frozen=True, kw_only=True)
class EvaluationWork:
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

    def continued(self) -> EvaluationWork:
        """An evaluation begins anew: it has no state between images."""
        return self
