import json
import subprocess
import sys

import pytest

from runner.base.errors import ConfigError, UsageError
from runner.cli.commands.runs.list import run
from tests.made_runs import make_run


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


@pytest.mark.parametrize("command", ["runs.list", "runs.diff", "runs.repeat", "report", "export"])
def test_no_torch_and_no_drawing_is_imported_before_it_is_needed(command):
    heavy = "[name for name in ('torch', 'matplotlib', 'jinja2') if name in sys.modules]"
    code = f"import runner.cli.commands.{command}, sys; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
