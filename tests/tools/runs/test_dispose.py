import os
import shutil

import pytest

from runner.base.errors import CheckpointError, OutputError
from runner.cli.commands.runs import delete, prune
from runner.run.checkpoint import CheckpointStore, verify
from runner.run.run_folder import RunFolder
from runner.tools.runs.dispose import delete_run, prune_run
from runner.tools.runs.find import find_runs
from tests.made_runs import make_run


@pytest.fixture
def made(tmp_path):
    def make(name="run", *, status="completed", best="0001-00000010", packaged=True):
        folder = make_run(tmp_path / name, status=status)
        store = CheckpointStore(folder / "checkpoints", keep=9)
        for epoch in range(1, 5):
            store.save(f"000{epoch}-000000{epoch}0", {}, {"epoch": epoch})
        store.point("best", best)
        store.point("last", "0004-00000040")
        if packaged:
            (folder / "model").mkdir()
            for file in ("model.json", "model.safetensors"):
                (folder / "model" / file).write_text("{}")
        return folder

    return make


def names(folder):
    return [int(name[:4]) for name in CheckpointStore(folder / "checkpoints", keep=9).names()]


def damage(folder, epoch):
    (folder / "checkpoints" / f"000{epoch}-000000{epoch}0" / "state.json").write_text("{}")


@pytest.mark.parametrize(
    ("status", "keep", "left"),
    [
        ("completed", 2, [1, 3, 4]),  # 1 is the best
        ("completed", 1, [1, 4]),
        ("completed", 0, []),
        ("stopped", 0, [1, 4]),
        ("failed", 9, [1, 2, 3, 4]),
        ("running", 1, [1, 4]),  # no process is left
    ],
)
def test_what_is_pruned(made, status, keep, left):
    folder = made(status=status)
    gone = [epoch for epoch in (1, 2, 3, 4) if epoch not in left]
    for is_dry in (True, False):
        sizes = prune_run(folder, keep, is_dry=is_dry)
        assert [int(name[:4]) for name in sizes] == gone
        assert all(size > 0 for size in sizes.values())
        assert names(folder) == ([1, 2, 3, 4] if is_dry else left)
    assert (folder / "checkpoints" / "last").exists() == bool(left)
    assert (folder / "model" / "model.json").exists()
    assert prune_run(folder, keep, is_dry=False) == {}


def test_without_its_package_a_completed_run_keeps_its_checkpoints(made):
    folder = made(packaged=False)
    prune_run(folder, 0, is_dry=False)
    assert names(folder) == [1, 4]


def test_the_last_valid_checkpoint_of_an_unfinished_run_stays(made):
    folder = made(status="failed", best="0004-00000040")
    damage(folder, 4)
    damage(folder, 3)
    prune_run(folder, 1, is_dry=False)
    assert names(folder) == [2, 4]
    verify(folder / "checkpoints" / "0002-00000020")


def test_a_run_that_trains_is_left_alone(made, tmp_path, capsys):
    folder = made(status="running")
    with RunFolder(folder).hold():
        with pytest.raises(OutputError, match="another process is working on this run"):
            delete_run(folder)
        with pytest.raises(OutputError, match="another process is working on this run"):
            prune_run(folder, 1, is_dry=False)
        assert prune.run([f"root={tmp_path}", "keep=0"]) == 0
    assert "is running, left alone" in capsys.readouterr().out
    assert names(folder) == [1, 2, 3, 4]


def test_deleting(made, tmp_path, capsys):
    completed, resumable, hopeless = made("a"), made("b", status="stopped"), made("c", status="failed")
    for epoch in (1, 2, 3, 4):
        damage(hopeless, epoch)
    assert delete.run([f"run={completed}"]) == 0
    assert f"deleted {completed}, 0.0 MB" in capsys.readouterr().out
    with pytest.raises(OutputError, match="is stopped and can be resumed from its checkpoint 0004-00000040"):
        delete_run(resumable)
    assert delete_run(hopeless) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    os.mkfifo(tmp_path / "pipe")
    for folder in (tmp_path, resumable / "checkpoints"):
        with pytest.raises(CheckpointError, match="is no run folder"):
            delete.run([f"run={folder}"])
    assert names(resumable) == [1, 2, 3, 4]


def test_what_a_killed_delete_leaves_is_no_run(made, tmp_path, monkeypatch):
    folder = made()
    monkeypatch.setattr(shutil, "rmtree", lambda path: None)
    delete_run(folder)
    assert list(find_runs(tmp_path)) == []


def test_pruning_many(made, tmp_path, capsys, caplog):
    made("a"), made("b", status="stopped")
    (make_run(tmp_path / "c") / "run.json").write_text("{")
    prune.run([f"root={tmp_path}", "keep=1", "dry_run=true"])
    assert "would free 0.0 MB" in capsys.readouterr().out
    prune.run([f"root={tmp_path}", "keep=1", "status=completed"])
    out = capsys.readouterr().out
    assert (out.count("a/checkpoints/000"), out.count("b/checkpoints/000")) == (2, 0)
    prune.run([f"root={tmp_path}", "keep=1"])
    assert (names(tmp_path / "a"), names(tmp_path / "b")) == ([1, 4], [1, 4])
    assert "c: left alone" in caplog.text
