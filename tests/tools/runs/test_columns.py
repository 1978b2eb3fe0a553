import json

import pytest

from runner.base.errors import ConfigError
from runner.tools.runs.columns import RunColumns
from runner.tools.runs.find import line_of
from tests.made_runs import make_run


def write_rows(folder, *rows):
    lines = [json.dumps({"epoch": epoch, **row}) + "\n" for epoch, row in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))


@pytest.fixture
def columns(tmp_path):
    for position, name in enumerate("abc"):
        best = {"metric": "val_top1", "value": 0.5 + position / 10, "epoch": 1}
        start = f"2026-01-0{position + 1}T00:00:00+00:00"
        folder = make_run(tmp_path / name, (f"optimizer.lr=0.{9 - position}",), best=best, start=start)
        write_rows(folder, {"val_top1": 0.5 + position / 10, "val_loss": 1.0 - position / 10}, {"val_loss": 9.0})
    make_run(tmp_path / "d", best=None, start="2025-01-01T00:00:00+00:00")
    return RunColumns([line_of(tmp_path / name) for name in "abcd"])


def names(lines):
    return "".join(line.folder.name for line in lines)


@pytest.mark.parametrize(
    ("column", "order"),
    [
        (None, "cbad"),
        ("start", "cbad"),
        ("best", "cbad"),
        ("val_loss", "cbad"),  # of the best epoch, the smallest first
        ("optimizer.lr", "abcd"),
        ("folder", "abcd"),
        ("name", "cbad"),  # none has one
    ],
)
def test_the_best_come_first_and_those_without_a_value_last(columns, column, order):
    assert names(columns.sorted(column)) == order


def test_a_best_loss_is_a_small_one(tmp_path):
    for name, value in (("a", 2.0), ("b", 1.0)):
        make_run(tmp_path / name, best={"metric": "val_loss", "value": value, "epoch": 1})
    assert names(RunColumns([line_of(tmp_path / name) for name in "ab"]).sorted("best")) == "ba"


def test_a_damaged_run_has_no_metrics_and_no_config(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "config.yaml").write_text("{")
    (folder / "metrics.jsonl").write_text("[]\n")
    line = line_of(folder)
    columns = RunColumns([line])
    assert columns.value(line, "val_loss") is None
    assert columns.value(line, "optimizer.lr") is None


def test_what_no_run_has_is_named_with_what_there_is(columns):
    columns.check("sort", "trainer.epochs")
    columns.check("sort", "seed")  # a key of the config that is in no group
    columns.check("sort", "notes")  # a fact, which no run happens to have
    RunColumns([]).check("sort", "anything")
    with pytest.raises(ConfigError, match="did you mean val_loss"):
        columns.check("sort", "val_los")
    with pytest.raises(ConfigError, match=r"there are .*val_top1, and the config's keys"):
        columns.check("sort", "xyzxyz")
