"""Turns, medians and spreads of the benchmarks, and that the page agrees with what was recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import memory  # noqa: E402 - the benchmarks are scripts, not a package
import side_by_side  # noqa: E402
import sweep_kills  # noqa: E402
import table  # noqa: E402
import trainers  # noqa: E402
from photographs import make_photographs  # noqa: E402
from side_by_side import BenchmarkError, Measured, Side  # noqa: E402


@pytest.mark.parametrize(
    ("num_sides", "repeats", "order"), [(2, 3, "ABBAAB"), (2, 4, "ABBAABBA"), (3, 2, "ABCCBA"), (1, 3, "AAA")]
)
def test_sides_take_turns(num_sides, repeats, order):
    assert "".join("ABC"[side] for side in side_by_side.turns(num_sides, repeats)) == order


def test_medians_and_spreads_are_of_the_runs_of_each_side(capsys):
    values = {"a": iter([5.0, 1.0, 3.0]), "b": iter([2.0, 8.0, 4.0])}
    sides = [Side(name=name, measure=lambda name=name: {"rate": next(values[name])}, command=name) for name in values]
    measured = side_by_side.compare(sides, 3)
    assert [measured[name].median("rate") for name in "ab"] == [3.0, 4.0]
    assert measured["a"].to_json()["figures"]["rate"] == {
        "median": 3.0,
        "lowest": 1.0,
        "highest": 5.0,
        "values": [5.0, 1.0, 3.0],
    }
    assert len(measured["a"].loads) == 3
    assert capsys.readouterr().out.count("rate") == 6


@pytest.mark.parametrize("small", [True, False])
def test_only_a_full_run_is_recorded(small, tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "RESULTS", tmp_path)
    runs = Measured(command="python x", runs=[{"rate": 2.0}], loads=[0.5])
    side_by_side.record("x", {"a": runs}, {"to_b": 2.0}, small=small, work="w", not_measured={"c": "not there"})
    assert (tmp_path / "x.json").exists() is not small
    if not small:
        result = json.loads((tmp_path / "x.json").read_text())
        assert result["ratios"] == {"to_b": 2.0}
        assert result["sides"]["a"]["figures"]["rate"]["median"] == 2.0
        assert result["machine"]["cores"] >= 1
        page = table.page({"x": result})
        assert "| a | rate | 2 | 2 | 2 | 1 | 0.5 to 0.5 |" in page
        assert "| c |  | not measured: not there |" in page


def test_a_command_that_fails_says_so_with_its_output():
    with pytest.raises(BenchmarkError, match=r"(?s)failed with 3.*what went wrong"):
        side_by_side.timed([sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)"])


def test_the_record_of_a_command_names_no_folder_of_this_machine(tmp_path):
    shown = side_by_side.shown(["/usr/bin/python3", str(ROOT / "benchmarks" / "loop.py"), f"a={tmp_path}/b"], tmp_path)
    assert shown == "python benchmarks/loop.py a=…/b"


def test_photographs_are_jpegs_of_the_size_asked_for(tmp_path):
    from PIL import Image

    make_photographs(tmp_path, num_train=20, num_val=10, width=50, height=40)
    files = sorted(tmp_path.glob("train/*/*.jpg"))
    assert (len(files), len(list(tmp_path.glob("val/*/*.jpg")))) == (20, 10)
    with Image.open(files[3]) as image:
        assert (image.format, image.size) == ("JPEG", (50, 40))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_is_that_of_a_process_and_its_children():
    code = "held = bytearray(b'x' * 50_000_000); print('ready', flush=True); input()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(memory.family(process.pid)) == 2
        assert memory.proportional_bytes(process.pid) > 50_000_000
        process.communicate("\n")


def test_rates_are_read_from_what_the_peers_print():
    place = trainers.Place(data=Path("d"), outputs=Path("o"), device="cpu", workers=1, epochs=1)
    timm = "Train: 0 [  30/31 ( 100%)]  Loss: 2.30 (2.31)  Time: 0.2s,  152.1/s  (0.212s,  150.75/s)  LR: 1.0e-02\n"
    assert trainers.rate_of_timm(place, timm) == 150.75
    reference = "".join(
        f"Epoch: [{epoch}]  [{step}/31]  eta: 0:00:09  img/s: 160.5  loss: 2.1 (2.2)  time: {time}  data: 0.05\n"
        for epoch, step, time in [(0, 0, "0.9"), (0, 20, "0.5"), (1, 0, "0.9"), (1, 20, "0.25")]
    )
    reference += "Epoch: [1] Total time: 0:00:08\nTest:   [ 0/10]  eta: 0:00:01  loss: 2  time: 0.1  data: 0.01\n"
    assert trainers.rate_of_torchvision(place, reference) == 128.0
    assert trainers.rate_of_lightning(place, "Epoch 2/2 ━━━ 30/30 0:00:09 • 0:00:00 3.25it/s v_num: 0.0") == 104.0


def test_a_goal_is_judged_in_its_direction_and_a_missing_one_is_not():
    results = {
        "start_up": {"ratios": {"help_seconds": 0.7}},
        "gloo_efficiency": {"ratios": {"batch_64": 0.93}},
    }
    rows = {line.split(" | ")[0]: line for line in table.page(results).splitlines() if line.startswith("| ")}
    assert rows["| `--help`"] == "| `--help` | ≤ 0.6 s | 0.7 s | no |"
    assert rows["| a config error"] == "| a config error | ≤ 0.6 s | not measured |  |"
    gloo = next(row for name, row in rows.items() if "batch 64" in name)
    assert gloo.endswith("| ≥ 90.0% | 93.0% | yes |")


def test_searches_are_shown_with_what_became_of_their_trials():
    found = {"status": {"completed": 18, "pruned": 12}, "epochs": 130, "seconds": 301.4, "best": 0.875, "command": "c"}
    machine = {"processor": "P", "cores": 2, "versions": {"torch": "2.15.0"}}
    result = {"work": "w", "date": "2026-11-20T12:00:00", "machine": machine, "load": 0.1}
    page = table.page({"sweep_pruning": {**result, "searches": {"median policy": found}}})
    assert "| median policy | 18 completed, 12 pruned | 130 | 301 | 87.50% |" in page
    assert "- median policy: `c`" in page


def test_the_sweep_that_is_killed_has_each_of_its_failures_and_its_kills_in_order():
    varied = dict(item.split("=", 1) for item in sweep_kills.grid())
    assert varied["model.name"].split(",").index("crashing") == sweep_kills.CRASHES
    assert varied["data.image_size"].split(",").index("1024") == sweep_kills.NEEDS_MEMORY
    assert {len(values.split(",")) for key, values in varied.items() if key != "sweep.zip"} == {sweep_kills.NUM_TRIALS}
    kills = sweep_kills.moments(5)
    assert kills == sweep_kills.moments(5)
    assert len({kill.finished_trials for kill in kills}) == 5
    good = table.read_results()["sweep_kills"]
    sweep_kills.check(good)
    for wrong in ({"finished_trials_that_ran_again": ["4"]}, {"exit_code": 0}, {"status": {}}):
        with pytest.raises(AssertionError):
            sweep_kills.check({**good, **wrong})


def test_the_page_agrees_with_the_recorded_results():
    assert table.PAGE.read_text(encoding="utf-8") == table.page(table.read_results()), "run `make bench-table`"


def test_each_goal_names_a_script_that_measures_it():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for goal in table.GOALS:
        assert any(goal.result == script or goal.result.startswith(f"{script}_") for script in scripts), goal.result


def test_figures_on_other_pages_are_recorded_ones():
    results = table.read_results()
    serve, tracker = results["serve_load"]["ratios"], results["tracker_overhead"]
    seconds = [tracker["sides"][side]["figures"]["command_seconds"]["median"] for side in ("mlflow", "none")]
    digits = [results["digits_seeds"][name] for name in ("best_top1", "last_top1")]
    best, last = ({name: 100 * value for name, value in one.items()} for one in digits)
    figures = {
        "README.md": (
            f"{best['mean']:.1f}% top-1 in its best epoch and {last['mean']:.1f}% in its last",
            f"{best['standard_deviation']:.1f} and {last['standard_deviation']:.1f} points",
            f"lowest {best['lowest']:.1f}% and {last['lowest']:.1f}%",
        ),
        "docs/serving.md": (f"{serve['FastAPI_1']:.2f} times the requests", f"{serve['FastAPI_64']:.2f} times to 64"),
        "docs/tracking.md": (
            f"took {tracker['ratios']['epoch_seconds'] - 1:.1%} longer",
            f"its start {seconds[0] - seconds[1]:.1f} seconds",
        ),
    }
    for page, expected in figures.items():
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [one for one in expected if one not in text] == [], page
