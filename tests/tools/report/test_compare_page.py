import re
from html.parser import HTMLParser

import pytest

from runner.base.errors import CheckpointError, ConfigError, OutputError
from runner.cli.commands.runs.compare import run
from runner.tools.report.compare_page import render_comparison
from runner.tools.runs.find import line_of
from tests.made_runs import make_run, row


@pytest.fixture
def root(tmp_path):
    rows = (row(1), row(2))
    make_run(tmp_path / "a", ("optimizer.lr=0.1",), rows, name="one $x$", group="g", tags={"set": "v2"})
    make_run(tmp_path / "b", ("optimizer.lr=0.2", "run.name=x"), rows[:1], name="<script>", group="g")
    make_run(tmp_path / "c", ("optimizer.lr=0.2",), (), name="<script>", best=None)
    return tmp_path


def test_curves_of_all_runs_and_the_keys_that_differ(root):
    text = render_comparison([line_of(root / name) for name in "abc"])
    HTMLParser().feed(text)
    columns = re.findall(r'<th scope="col">([^<]+)</th>', text)
    assert columns == ["run", "group", "tags", "best", "epoch", "took", "optimizer.lr", "status"]
    assert text.count("<tr class=") == 3
    assert "<script" not in text
    assert "&lt;script&gt; (" in text  # two have the name, so the folder follows
    captions = re.findall(r"<figcaption>([^<]+)</figcaption>", text)
    assert captions[:3] == ["val_loss", "val_top1", "train_loss"], "val_top5 has one value everywhere"
    assert captions[-3:] == ["lr", "train_images_per_second", "epoch_seconds"]
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text) == []


def test_a_metric_with_one_value_everywhere_has_no_chart(tmp_path):
    for name, skipped in (("a", 0), ("b", 0)):
        make_run(tmp_path / name, (), ({**row(1), "val_images_skipped": skipped}, row(2)))
    text = render_comparison([line_of(tmp_path / name) for name in "ab"])
    assert "val_images_skipped" not in text
    assert "val_loss" in text


def test_the_same_runs_are_the_same_page(root):
    lines = [line_of(root / name) for name in "ab"]
    assert render_comparison(lines) == render_comparison(lines)


def test_filters_and_typed_runs(root, tmp_path):
    run([f"root={root}", "group=g", f"output={tmp_path / 'g.html'}"])
    assert "2 runs compared" in (tmp_path / "g.html").read_text()
    run([f"runs=[{root / 'c'},{root / 'a'}]", f"output={tmp_path / 'typed.html'}"])
    text = (tmp_path / "typed.html").read_text()
    assert text.index("&lt;script&gt;</td>") < text.index("one $x$</td>")


def test_a_wrong_call_is_named_and_writes_nothing(root, tmp_path):
    output = tmp_path / "page.html"
    with pytest.raises(ConfigError, match="no such runs under it"):
        run([f"root={root}", "name=absent", f"output={output}"])
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"runs=[{tmp_path}]", f"output={output}"])
    with pytest.raises(ConfigError, match="no run has this"):
        run([f"root={root}", "sort=vall", f"output={output}"])
    assert not output.exists()
    output.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        run([f"root={root}", f"output={output}"])
    assert output.read_text() == "mine"
