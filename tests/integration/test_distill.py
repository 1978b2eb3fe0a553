"""A student learns from the packaged model of a finished run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runner
from runner.base.errors import CheckpointError, ConfigError
from runner.cli.commands import resume


@pytest.fixture
def teacher(tiny, tmp_path: Path) -> Path:
    run = runner.fit(runner.load_config(tiny("trainer.epochs=1"))).run_dir
    return shutil.copytree(run / "model", tmp_path / "teacher")


def test_the_teacher_is_evaluated_and_recorded_and_changes_what_is_learnt(tiny, teacher):
    alone = runner.fit(runner.load_config(tiny("trainer.max_steps=3")))
    taught = runner.fit(runner.load_config(tiny("trainer.max_steps=3", f"distill.run={teacher}")))
    log = (taught.run_dir / "logs" / "rank_0.log").read_text()
    assert log.count("teacher     val top-1 ") == 1
    record = json.loads((taught.run_dir / "run.json").read_text())
    digest = json.loads((teacher / "model.json").read_text())["weights_sha256"]
    assert record["teacher"] == {"run": str(teacher), "weights_sha256": digest}
    packages = [json.loads((run.run_dir / "model" / "model.json").read_text()) for run in (alone, taught)]
    assert packages[0]["weights_sha256"] != packages[1]["weights_sha256"]
    assert json.loads((alone.run_dir / "run.json").read_text())["teacher"] is None


def test_a_share_of_zero_changes_no_bit(tiny, teacher):
    runs = [
        runner.fit(runner.load_config(tiny("trainer.max_steps=3", *more))).run_dir
        for more in ((), (f"distill.run={teacher}", "distill.weight=0"))
    ]
    cards = [json.loads((run / "model" / "model.json").read_text()) for run in runs]
    assert cards[0]["weights_sha256"] == cards[1]["weights_sha256"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("data.num_classes=3",), "has other classes than the data: only it has 3, only the data none"),
        (("data.normalize.mean=[0.1,0.1,0.1]",), "was trained with data.normalize="),
        (("data.channels=1", "data.normalize.mean=[0.1]", "data.normalize.std=[0.1]"), "data.channels=3, here it is 1"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(tiny, teacher, typed, said):
    with pytest.raises(ConfigError) as caught:
        runner.fit(runner.load_config(tiny(*typed, f"distill.run={teacher}")))
    assert {problem.key for problem in caught.value.problems} == {"distill.run"}
    assert said in str(caught.value)


def test_no_teacher_in_the_folder(tiny, tmp_path):
    with pytest.raises(CheckpointError, match="nowhere holds no packaged model"):
        runner.fit(runner.load_config(tiny(f"distill.run={tmp_path / 'nowhere'}")))


def test_a_run_goes_on_with_its_teacher_only(tiny, teacher, tmp_path):
    run = runner.fit(runner.load_config(tiny("trainer.max_steps=3", f"distill.run={teacher}"))).run_dir
    other = runner.fit(runner.load_config(tiny("trainer.max_steps=2"))).run_dir
    shutil.rmtree(teacher)
    shutil.copytree(other / "model", teacher)
    with pytest.raises(CheckpointError, match=r"teacher \(distill.run\) holds another model than when the run began"):
        resume.run([f"run={run}", "trainer.max_steps=5"])
