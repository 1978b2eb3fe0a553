"""Writes the TensorBoard event files of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from tensorboard.summary.writer.event_file_writer import _AsyncWriterThread  # type: ignore[import-untyped]
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from torchvision.utils import make_grid

from runner.base.console import LOGGER
from runner.base.errors import OutputError
from runner.base.files import named_write_errors


class TensorBoardLog:
    """Scalars, hparams and one grid of images in `tensorboard/`."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        self._folder = folder
        with named_write_errors(folder):
            self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def __enter__(self) -> TensorBoardLog:
        self._earlier_hook, threading.excepthook = threading.excepthook, self._on_thread_error
        return self

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        # The next call to the writer raises the same error: no traceback of TensorBoard's thread on the terminal.
        if not (isinstance(args.thread, _AsyncWriterThread) and isinstance(args.exc_value, OSError)):
            self._earlier_hook(args)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with named_write_errors(self._folder):
                self._writer.close()
        except OutputError as second:
            if error is None:
                raise
            LOGGER.warning("TensorBoard's curves lack their last points: %s", second)
        finally:
            threading.excepthook = self._earlier_hook

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each of several curves.

        Raises:
            OutputError: when this point or an earlier one can't be written.
        """
        with named_write_errors(self._folder):
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def images(self, tag: str, images: torch.Tensor) -> None:
        """Add a grid of images, uint8 or float32 in [0, 1], N × channels × H × W; a fourth channel is left out."""
        with named_write_errors(self._folder):
            self._writer.add_image(tag, make_grid(images[:, :3], nrow=8), 0)

    def hparams(self, parameters: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """Record hyperparameters with the final metrics, in the run's own event file instead of a subfolder."""
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in parameters.items()
        }
        writer = self._writer._get_file_writer()  # type: ignore[no-untyped-call]
        with named_write_errors(self._folder):
            for summary in hparams(plain, dict.fromkeys(metrics, 0.0)):  # type: ignore[no-untyped-call]
                writer.add_summary(summary)
        self.scalars(metrics, step)
