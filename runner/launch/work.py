"""What the processes of a group do once they have met: train, or evaluate. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from runner.config.schema import Config

if TYPE_CHECKING:
    from runner.base.stop import StopRequest
    from runner.data.splits import Splits
    from runner.dist.collectives import DistContext

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
