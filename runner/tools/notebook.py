"""What the cell of a notebook shows of a training. Where there is no notebook, no IPython is needed."""

from __future__ import annotations

import html
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.console import LOGGER, messages_and_progress_on
from runner.run.contents import read_rows

if TYPE_CHECKING:
    from runner.tools.report.charts import Picture

_NUM_CURVES = 2  # loss and accuracy; the report has the others


def is_in_notebook() -> bool:
    """Whether this process runs the cells of a notebook; IPython in a terminal does not."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookCell:
    """One output of the cell that is running: a line of progress above pictures, both redrawn in place."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._line = self._bar = self._pictures = ""
        self._draw(is_new=True)

    def show_progress(self, label: str, detail: str, completed: int, total: int) -> None:
        """Draw the line of progress, such as "epoch 3/5", "loss 0.4", 10 of 45 steps."""
        self._line = f"{label}  {completed}/{total}  {detail}"
        self._bar = f'<progress value="{completed}" max="{total}"></progress>'
        self._draw()

    def clear_progress(self) -> None:
        """Remove the line of progress until the next one."""
        self._line = self._bar = ""
        self._draw()

    def show_pictures(self, pictures: Iterable[Picture]) -> None:
        """Draw pictures side by side, under their titles."""
        self._pictures = "".join(
            '<figure style="display: inline-block; margin: 0; background: white; color: #475569">'
            f"<figcaption>{html.escape(picture.title)}</figcaption>"
            f'<img src="{html.escape(picture.source)}" alt="{html.escape(picture.text)}"></figure>'
            for picture in pictures
        )
        self._draw()

    def _draw(self, *, is_new: bool = False) -> None:
        from IPython.display import display  # noqa: PLC0415 - it is there: it runs the cell

        page = f"<div>{self._bar} <code>{html.escape(self._line)}</code></div><div>{self._pictures}</div>"
        content = {"text/plain": self._line, "text/html": page}
        display(content, raw=True, display_id=self._id, update=not is_new)  # type: ignore[no-untyped-call]


@contextmanager
def shown_in_cell() -> Iterator[Callable[[Path], None] | None]:
    """Within the block, the cell that is running shows the log and the progress; does nothing outside of a notebook.

    Yields:
        A function that draws the curves of a run folder into the cell; None outside of a notebook.
    """
    if not is_in_notebook():
        yield None
        return
    cell = NotebookCell()
    with messages_and_progress_on(cell):
        yield partial(_draw_curves, cell)


def _draw_curves(cell: NotebookCell, run_dir: Path) -> None:
    try:
        from runner.tools.report.charts import training_curves  # noqa: PLC0415 - matplotlib, once something is drawn

        rows = read_rows(run_dir / "metrics.jsonl")
        curves = training_curves(rows, has_top5=any(row["val_top5"] < 1 for row in rows))
        cell.show_pictures(curves[:_NUM_CURVES])
    except Exception as error:  # no reason to end the training, whatever it is
        LOGGER.warning("the curves can't be drawn: %s: %s", type(error).__name__, error)
