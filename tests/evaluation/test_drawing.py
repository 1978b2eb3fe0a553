from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from runner.evaluation.drawing import drawn

FORMULA = "k$\\frac{$"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_no_text_is_read_as_a_formula(kind):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], [1, 2], label=FORMULA)
    axes.set(title=FORMULA, xlabel=FORMULA, ylabel=FORMULA)
    axes.set_xticks([1, 2], [FORMULA, "$x$"])
    axes.annotate(FORMULA, (1, 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{FORMULA}{value}")
    axes.legend()
    with mpl.rc_context({"svg.fonttype": "none"}):
        content = drawn(figure, kind)
    assert kind == "png" or content.decode().count("k$\\frac{$") > 6


def test_all_figures_are_drawn_in_one_place():
    root = Path(__file__).parents[2] / "runner"
    found = [path for path in root.rglob("*.py") if re.search("savefig|pyplot", path.read_text())]
    assert found == [root / "evaluation/drawing.py"]
