import json

import pytest

from tests.cluster.conftest import why_not

REASON = why_not("mpirun")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=REASON or "")]
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np")


@pytest.mark.parametrize("number", [2, 4])
def test_mpirun_trains_one_run(start, tiny, tmp_path, number):
    start((*MPIRUN, str(number)), tiny("data.batch_size=4", "trainer.epochs=1"))
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/run.json")]
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", number, "adopted")
    (log,) = tmp_path.glob("outputs/*/*/logs/rank_0.log")
    assert f"(0.01 × {number} processes)" in log.read_text()
    assert len(list(log.parent.glob("rank_*.log"))) == number


def test_a_mistake_ends_all_processes(start, tiny, tmp_path):
    done = start((*MPIRUN, "2"), tiny("trainer.epchos=1"), is_well=False)
    assert "did you mean trainer.epochs" in done.stderr
    assert not (tmp_path / "outputs").exists()
