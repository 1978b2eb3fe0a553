from runner.run.tensorboard import TensorBoardLog
from runner.run.tracking.history import STEP_TAGS, RunHistory, flat_texts
from tests.made_runs import make_run, row


def test_a_resumed_run_has_each_step_once_with_its_newest_value(tmp_path):
    run_dir = make_run(tmp_path / "run", (), (row(1), row(2)), start="2026-01-01T00:00:00+00:00")
    for value, steps in ((1.0, (10, 20)), (2.0, (20, 30))):
        with TensorBoardLog(run_dir / "tensorboard") as log:
            for step in steps:
                log.scalars(dict.fromkeys(STEP_TAGS, value), step)
            log.scalars({"train/loss": 9.0}, 40)  # of a point that is written in part
    history = RunHistory(run_dir)
    snapshot = history.read(is_alive=True)
    assert [(point.step, point.values["train/loss"]) for point in snapshot.steps] == [(10, 1.0), (20, 2.0), (30, 2.0)]
    assert [point.values["epoch"] for point in snapshot.epochs] == [1, 2]
    assert snapshot.epochs[0].milliseconds > snapshot.start_milliseconds == 1767225600000
    assert history.read(is_alive=True) == snapshot, "points have the same times at each reading"


def test_a_run_whose_process_is_gone_has_died(tmp_path):
    history = RunHistory(make_run(tmp_path / "run", status="running"))
    assert (history.read(is_alive=True).status, history.read(is_alive=False).status) == ("running", "died")
    assert RunHistory(tmp_path).read(is_alive=True) is None


def test_values_are_flat_texts():
    assert flat_texts({"a": {"b": None, "c": [1, "x"]}, "d": True, "e": "text", "f": {}}) == {
        "a.b": "null",
        "a.c": '[1, "x"]',
        "d": "true",
        "e": "text",
        "f": "{}",
    }
