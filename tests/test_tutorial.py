"""docs/tutorial.md: what it shows is what its commands do."""

from __future__ import annotations

import re

import pytest

from tests.tutorial import PAGE, Names, as_run, comparable


@pytest.mark.long
def test_the_page_shows_what_its_commands_do(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    assert as_run(page, tmp_path) == page, "if it is meant so: python -m tests.tutorial"


def test_the_first_section_leads_from_a_zip_to_a_report_in_at_most_five_commands():
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    assert "photos.zip" in section
    assert "report.html" in section
    assert len(re.findall(r"^(?:\$|pip) .+$", section, re.MULTILINE)) == 4


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("9 images/s in 0.1 seconds", "81 images/s in 12.0 seconds", True),
        ("    1/6     0.0145      1.3738    86      0.7  best", "    1/6     0.0144      1.4       112      1.7", True),
        ("best        val_top1 = 100.00% at epoch 4", "best        val_top1 = 94.44% at epoch 12", True),
        ("shufflenet  33.33%  1      died    3 s", "shufflenet  27.78%  2      died    1 min 03 s", True),
        ("device      cpu: AMD EPYC\nbest", "best", True),
        ("trial 0  starts\ntrial 1  starts", "trial 1  starts\ntrial 0  starts", True),
        (f"{'a' * 64}  a\n{'a' * 64}  b", f"{'c' * 64}  a\n{'c' * 64}  b", True),
        (f"{'a' * 64}  a\n{'a' * 64}  b", f"{'a' * 64}  a\n{'c' * 64}  b", False),
        ("completed   6 epochs in 7.1 seconds", "completed   5 epochs in 7.1 seconds", False),
        ("imported 72 images", "imported 73 images", False),
        ("    1/6     0.0145", "    2/6     0.0145", False),
        ("runner: ConfigError: 2 mistakes", "runner: UsageError: 2 mistakes", False),
    ],
)
def test_only_clock_machine_and_rounding_are_ignored(old, new, is_same):
    assert (comparable(f"{old}\n") == comparable(f"{new}\n")) == is_same


def test_folders_are_named_in_the_order_in_which_they_appear(tmp_path):
    names = Names(tmp_path, "127.0.0.1:1")
    real = f"{tmp_path}/outputs/2031-01-02/03-04-05-abcdef"
    assert names.shown(f"run folder  {real}") == "run folder  /home/you/sky/outputs/2026-11-20/10-01-00-000001"
    assert (
        names.real("report run=outputs/2026-11-20/10-01-00-000001") == "report run=outputs/2031-01-02/03-04-05-abcdef"
    )
