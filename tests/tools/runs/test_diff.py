from runner.tools.runs.diff import differences
from runner.tools.runs.past import read_run
from tests.made_runs import make_run, row


def test_only_what_differs_is_shown(tmp_path):
    first = make_run(tmp_path / "a", rows=(row(1),), data={"fingerprint": "1", "num_train": 5})
    second = make_run(
        tmp_path / "b",
        ("optimizer.lr=0.5",),
        (row(1, val_loss=0.25, epoch_seconds=99.0),),
        data={"fingerprint": "2", "num_train": 5},
        git={"commit": "b" * 40, "dirty": True},
        versions={"torch": "2.11.0"},
        best=None,
    )
    (second / "source.patch").write_bytes(b"diff --git a/x b/x\n+1\ndiff --git a/y b/y\n")
    for folder, version in ((first, "1"), (second, "2")):
        (folder / "environment.txt").write_text(f"same==1\nnumpy=={version}\n")
    found = differences(read_run(first), read_run(second))
    assert found["config"] == {"optimizer.lr": (0.01, 0.5)}
    assert set(found["code"]) == {"commit", "dirty", "source.patch"}
    assert found["code"]["source.patch"][1].startswith("2 changed files, SHA-256 ")
    assert found["data"] == {"fingerprint": ("1", "2")}
    assert found["environment"] == {"packages.numpy": ("1", "2"), "packages.torch": ("2.15.0", "2.11.0")}
    assert found["metrics"]["last epoch.val_loss"] == (1.1, 0.25)
    assert "last epoch.epoch_seconds" not in found["metrics"]
    assert differences(read_run(first), read_run(first)) == {}


def test_what_only_a_newer_run_has_recorded_is_no_difference_of_data(tmp_path):
    old = make_run(tmp_path / "old")
    new = make_run(tmp_path / "new", data={"fingerprint": "1", "num_train": 5})
    assert differences(read_run(old), read_run(new)) == {}
