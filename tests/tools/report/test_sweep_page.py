from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from runner.base.errors import OutputError
from runner.cli.commands import report
from runner.tools.report.sweep_charts import positions
from runner.tools.report.sweep_page import importances, render_sweep
from runner.tools.sweep.leaderboard import read_leaderboard
from runner.tools.sweep.sweep_folder import SweepFolder


def fill(add_trial) -> None:
    for number, lr in enumerate((0.001, 0.01, 0.1, 0.5, 0.9, 1.0)):
        epochs = [0.2 + lr / 2, 0.3 + lr / 2]
        add_trial({"optimizer.lr": str(lr), "model": ("resnet18", "resnet34")[number % 2]}, epochs)
    add_trial({"optimizer.lr": "0.3", "model": "resnet18"}, [0.1], "pruned")
    add_trial({"optimizer.lr": "0.4", "model": "<script>alert(1)</script>"}, [], "failed")


def test_the_page_shows_all_trials_and_needs_nothing_else(folder, add_trial):
    fill(add_trial)
    assert report.run([f"run={folder.path}"]) == 0
    text = (folder.path / "report.html").read_text()
    HTMLParser().feed(text)
    assert text.count("<tr class=") == 8
    assert "<script" not in text and "&lt;script&gt;" in text
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text) == []
    assert text.count("data:image/svg+xml") == 5  # parallel coordinates, two keys, importance, curves
    for heading in (
        "The winner",
        "Leaderboard",
        "Parallel coordinates",
        "against each key",
        "Importance",
        "over the epochs",
    ):
        assert heading in text
    assert "python -m runner optimizer.lr=1.0 model=resnet34" in text


def test_the_same_sweep_is_the_same_page(folder, add_trial):
    fill(add_trial)
    assert render_sweep(folder) == render_sweep(folder)


def test_the_names_of_the_trials_stand_above_unless_they_differ(folder, add_trial, base_config, monkeypatch):
    names = {"name": None, "group": "g", "tags": {"set": "v2"}, "notes": None, "snapshot": False}
    monkeypatch.setitem(base_config, "run", names)
    add_trial({"optimizer.lr": "0.1"}, [0.1])
    assert "· group g · set=v2</p>" in render_sweep(folder)
    monkeypatch.setitem(base_config, "run", names | {"group": "h"})
    add_trial({"optimizer.lr": "0.2"}, [0.1])
    assert "· group" not in render_sweep(folder)


def test_a_sweep_that_has_just_begun_has_a_page(folder, add_trial):
    assert "No trial has been trained to its end." in render_sweep(folder)
    add_trial({"seed": "1"}, [], None)
    assert "waiting" in render_sweep(folder)


def test_a_folder_without_sweep_json_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"is no folder of a sweep: it has no sweep\.json"):
        render_sweep(SweepFolder(tmp_path))


def test_the_key_that_makes_the_difference_is_the_important_one(folder, add_trial):
    for number in range(8):
        add_trial({"optimizer.lr": str(number / 10 + 0.1), "seed": str(number % 2)}, [number / 10])
    board = read_leaderboard(folder, folder.trials(), ("val_top1",), ("maximize",))
    shares = importances([place.outcome for place in board.rows], board)
    assert next(iter(shares)) == "optimizer.lr"
    assert sum(shares.values()) == pytest.approx(1)


def test_numbers_are_positions_and_words_are_numbered():
    assert positions(["1", "2.5"]).of_values == [1, 2.5]
    assert positions(["0.001", "1"]).is_log
    words = positions(["b", "a", "b"])
    assert (words.of_values, words.labels) == ([0, 1, 0], ["b", "a"])


def test_keys_and_values_are_no_formulas(folder, add_trial):
    for number, lr in enumerate((0.001, 0.01, 0.1, 1.0)):
        add_trial({"k$\\frac{$": str(lr), "model": ("$\\frac{$", "b")[number % 2]}, [0.2 + lr / 2])
    assert render_sweep(folder).count("data:image/svg+xml") == 5
