import json

from runner.run.run_folder import summary_of_experiment
from runner.tools.runs.find import find_runs, select, sum_up
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


def test_newest_first_and_filters(tmp_path):
    on = {"model": "resnet50", "data": "folder", "data_root": "/photos/ants"}
    write_record(tmp_path / "a", start="2026-01-01T00:00:00+00:00", status="failed")
    write_record(tmp_path / "b", start="2026-01-03T00:00:00+00:00", experiment=on)
    write_record(tmp_path / "c", start="2026-01-02T00:00:00+00:00")
    lines = [sum_up(folder) for folder in find_runs(tmp_path)]

    def names(**filters):
        return [line.folder.name for line in select(lines, **filters)]

    assert names() == ["b", "c", "a"]
    assert names(status="failed") == ["a"]
    assert names(model="resnet5*") == names(data="folder") == names(data="/photos/*") == ["b"]
    assert names(data="digits", status="completed") == ["c"]
    assert names(model="vit") == []


def test_what_is_damaged_is_shown_and_what_waits_for_slurm_too(tmp_path):
    for name, text in (("torn", '{"status": "comp'), ("odd", json.dumps(record(best={}))), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
        line = sum_up(tmp_path / name)
        assert (line.status, line.model) == ("damaged", None)
        assert "run.json" in line.error
    queued = tmp_path / "queued"
    (queued / "logs").mkdir(parents=True)
    (queued / "config.yaml").write_text("seed: 1\n")
    assert queued in set(find_runs(tmp_path))
    assert sum_up(queued).status == "queued"


def test_a_run_of_before_is_read_from_its_config(tmp_path):
    folder = make_run(tmp_path / "old", ("model=resnet34",), experiment=None)
    line = sum_up(folder)
    assert (line.model, line.data, line.elapsed_seconds) == ("resnet34", "digits", 125)


def test_what_a_run_is_about():
    assert summary_of_experiment({"name": "vit"}, {"source": "torchvision", "name": "CIFAR10", "root": "/cache"}) == {
        "model": "vit",
        "data": "CIFAR10",
        "data_root": None,
    }
    assert summary_of_experiment({}, {"source": "folder", "root": None, "train": "/t"})["data_root"] == "/t"
