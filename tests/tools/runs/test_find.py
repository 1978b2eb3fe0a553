import json

from runner.run.run_folder import summary_of_experiment
from runner.tools.runs.find import as_table, find_runs, line_of, select, shortened
from tests.made_runs import make_run, record


def write_record(folder, **facts):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record(**facts)))


def test_runs_are_found_in_sweeps_too_and_not_within_runs(tmp_path):
    names = ["2026-11-20/a", "sweeps/2026-11-20/s/0", "sweeps/2026-11-20/s/1"]
    for name in names:
        write_record(tmp_path / name)
    write_record(tmp_path / "2026-11-20/a/inner")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)) == names
    assert list(find_runs(tmp_path / names[0])) == [tmp_path / names[0]]


def test_filters(tmp_path):
    on = {"model": "resnet50", "data": "folder", "data_root": "/photos/ants"}
    write_record(tmp_path / "a", start="2026-01-01T00:00:00+00:00", status="failed")
    write_record(tmp_path / "b", start="2026-01-03T00:00:00+00:00", experiment=on)
    named = {"name": "base", "group": "g", "tags": {"set": "v2", "seed": 3, "ok": True}}
    write_record(tmp_path / "c", start="2026-01-02T00:00:00+00:00", **named)
    lines = [line_of(folder) for folder in find_runs(tmp_path)]

    def names(**filters):
        return sorted(line.folder.name for line in select(lines, **filters))

    assert names() == ["a", "b", "c"]
    assert names(status="failed") == ["a"]
    assert names(model="resnet5*") == names(data="folder") == names(data="/photos/*") == ["b"]
    assert names(data="digits", status="completed") == ["c"]
    assert names(name="b?se") == names(group="g") == names(tags={"set": "v*"}) == ["c"]
    assert names(tags={"seed": 3, "ok": True}) == ["c"]
    assert names(name="base", tags={"set": "v1"}) == names(tags={"absent": "*"}) == []
    assert names(model="vit") == []


def test_damaged_runs_and_those_queued_in_slurm_are_shown(tmp_path):
    for name, text in (("torn", '{"status": "comp'), ("odd", json.dumps(record(best={}))), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
        line = line_of(tmp_path / name)
        assert (line.status, line.model) == ("damaged", None)
        assert "run.json" in line.error
    queued = tmp_path / "queued"
    (queued / "logs").mkdir(parents=True)
    (queued / "config.yaml").write_text("seed: 1\n")
    assert queued in set(find_runs(tmp_path))
    assert line_of(queued).status == "queued"


def test_a_run_of_before_is_read_from_its_config(tmp_path):
    folder = make_run(tmp_path / "old", ("model=resnet34",), experiment=None)
    line = line_of(folder)
    assert (line.model, line.data, line.elapsed_seconds) == ("resnet34", "digits", 125)


def test_model_and_data_of_a_run():
    assert summary_of_experiment({"name": "vit"}, {"source": "torchvision", "name": "CIFAR10", "root": "/cache"}) == {
        "model": "vit",
        "data": "CIFAR10",
        "data_root": None,
    }
    assert summary_of_experiment({}, {"source": "folder", "root": None, "train": "/t"})["data_root"] == "/t"


def test_columns_line_up_with_wide_letters_and_show_control_characters():
    text = as_table(("name", "x"), [("🐜", "1"), ("a\nb\x1b[31m", "2")])
    assert text.splitlines() == ["name          x", "🐜            1", "a\\nb\\x1b[31m  2"]


def test_a_table_fits_the_width_and_never_shortens_what_identifies_a_row():
    rows = [("a-key-of-a-row", "x" * 60 + "end", "12.5%", "2026-01-01"), ("b", "short", "1.0%", "2026-01-02")]
    head = ("key", "value", "best", "started")
    assert max(map(len, as_table(head, rows).splitlines())) > 80
    text = as_table(head, rows, width=60, rigid=("best",), optional=("started",))
    assert max(map(len, text.splitlines())) == 60
    assert "a-key-of-a-row" in text
    assert "…" in text
    assert "end  12.5%  2026-01-01" in text
    narrow = as_table(head, rows, width=36, rigid=("best",), optional=("started",))
    assert max(map(len, narrow.splitlines())) <= 36
    assert "started" not in narrow
    assert "12.5%" in narrow


def test_the_middle_of_a_long_text_is_left_out():
    assert shortened("0123456789", 10) == "0123456789"
    assert shortened("0123456789a", 7) == "012…89a"
