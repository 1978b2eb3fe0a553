import json
import subprocess
import sys

import pytest

from runner.base.errors import ConfigError, UsageError
from runner.cli.commands.runs.list import run
from tests.made_runs import make_run

RUNS = ("list", "diff", "repeat", "tag", "compare", "watch", "delete", "prune")


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path / "2026-11-20" / "one", start="2026-11-20T10:00:00+00:00")
    error = {"name": "NonFiniteLossError", "message": "the loss: gone", "rank": 0}
    make_run(
        tmp_path / "2026-11-21" / "two", start="2026-11-21T10:00:00+00:00", status="failed", error=error, best=None
    )
    return tmp_path


def test_a_table_for_people(root, capsys, monkeypatch):
    run([f"root={root}"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "140")
    assert run([f"root={root}"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["folder", "model", "data", "best"]
    assert first.split()[:4] == ["2026-11-21/two", "resnet18", "digits", "–"]
    assert "failed (NonFiniteLossError)" in first
    assert "val_top1 90.00%  2      completed  " in second
    assert "2026-11-20 10:00:00" in second


def test_json_for_programs(root, capsys):
    run([f"root={root}", "format=json", "status=completed"])
    (line,) = json.loads(capsys.readouterr().out)
    assert line["folder"] == str(root / "2026-11-20" / "one")
    assert (line["best"]["value"], line["elapsed_seconds"], line["error"]) == (0.9, 125.0, None)


def test_a_limit_says_what_it_leaves_out(root, capsys):
    run([f"root={root}", "limit=1"])
    out = capsys.readouterr().out
    assert "two" in out
    assert "1 older runs are not shown" in out
    run([f"root={root}", "model=vit*"])
    assert "no such runs" in capsys.readouterr().out


def test_names_columns_and_order(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rates = {"slow": 0.5, "fast": 0.7}
    for name, value in rates.items():
        best = {"metric": "val_top1", "value": value, "epoch": 1}
        make_run(tmp_path / name, (f"optimizer.lr={value}",), name=name, tags={"set": "v2"}, best=best)
    make_run(tmp_path / "plain", best=None)
    run([f"root={tmp_path}", "sort=best"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["folder", "name"]
    assert [line.split()[0] for line in lines] == ["fast", "slow", "plain"]
    run([f"root={tmp_path}", "tags.set=v*", "columns=[name,optimizer.lr,tags.set,tags]", "sort=name"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "optimizer.lr", "tags.set", "tags"]
    assert [line.split() for line in lines] == [["fast", "0.7", "v2", "set=v2"], ["slow", "0.5", "v2", "set=v2"]]
    run([f"root={tmp_path}", "name=fast", "columns=[name,tags,optimizer.lr]", "format=csv"])
    assert capsys.readouterr().out == 'name,tags,optimizer.lr\nfast,"{""set"": ""v2""}",0.7\n'
    run([f"root={tmp_path}", "name=fast", "columns=[name,tags]", "format=json"])
    assert json.loads(capsys.readouterr().out) == [{"name": "fast", "tags": {"set": "v2"}}]


def test_a_column_that_no_run_has_is_named(root):
    with pytest.raises(ConfigError, match="columns = 'statuss': no run has this; did you mean status"):
        run([f"root={root}", "columns=[statuss]"])
    with pytest.raises(ConfigError, match=r"sort = 'optimizer\.lrr': no run has this"):
        run([f"root={root}", "sort=optimizer.lrr"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["root=/nowhere/at/all"], "there is no such folder"),
        (["status=finished"], "must be 'running', 'completed'"),
        (["limit=0"], "must be at least 1"),
        (["limit=1,2"], "several values are a sweep"),
        (["rot=x"], "rot = 'x': no such key; did you mean root"),
        (["trainer.epochs=3"], "no such key; runs list takes root, status"),
    ],
)
def test_a_wrong_call_is_named(argv, message):
    with pytest.raises(ConfigError, match=message):
        run(argv)


def test_a_bare_word_gets_a_hint():
    with pytest.raises(UsageError, match="did you mean root=outputs"):
        run(["outputs"])


@pytest.mark.parametrize("command", [*(f"runs.{name}" for name in RUNS), "report", "export"])
def test_no_torch_and_no_drawing_is_imported_before_it_is_needed(command):
    heavy = "[name for name in ('torch', 'matplotlib', 'jinja2') if name in sys.modules]"
    code = f"import runner.cli.commands.{command}, sys; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
