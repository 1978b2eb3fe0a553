from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from runner.evaluation.confusion import Confusion
from runner.evaluation.drawing import confusion_png, drawn

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


@pytest.mark.parametrize("num_classes", [2, 30, 300, 2500])
def test_the_picture_of_a_confusion_matrix_has_a_size_for_any_screen(num_classes, tmp_path):
    names = ("<script>", "$x_1^2$ 🐜 " + "long " * 20, *map(str, range(2, num_classes)))
    matrix = np.random.default_rng(0).integers(0, 5, (num_classes, num_classes))
    matrix[0] = 0  # a class without images
    file = tmp_path / "matrix.png"
    file.write_bytes(confusion_png(Confusion.from_json(matrix.tolist(), num_classes), names))
    with Image.open(file) as image:
        assert 300 < image.width < 2000
        assert 300 < image.height < 2000
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 24)) > 10
