import csv
import io

import pytest

from runner.base.safe_text import csv_lines, neutral, nine_digits


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx", "\nx"])
def test_what_a_spreadsheet_would_run_is_only_shown(text):
    assert neutral(text) == f"'{text}"


def test_other_texts_and_numbers_stay_as_they_are():
    texts = ["plain", "a=b", "", "🐜", 'a "b", c\nd']
    assert [neutral(text) for text in texts] == texts
    ((*cells, number, missing),) = csv.reader(io.StringIO(csv_lines([[*texts, -1.5, None]])))
    assert (cells, number, missing) == (texts, "-1.5", "")


def test_nine_digits_tell_float32_values_apart():
    import numpy as np

    values = np.random.default_rng(0).random(1000, dtype=np.float32)
    assert all(np.float32(nine_digits(float(value))) == value for value in values)
    assert len(repr(nine_digits(float(values[0])))) <= 11
