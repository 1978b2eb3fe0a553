import json

import pytest

from tests.cluster.conftest import why_not

pytestmark = pytest.mark.cluster
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np")
HYDRA = ("mpiexec.hydra", "-n")  # of MPICH, with PMI's variables as Intel MPI has them too
needs_open_mpi, needs_mpich = (
    pytest.mark.skipif(why_not(program) is not None, reason=why_not(program) or "")
    for program in ("mpirun", "mpiexec.hydra")
)


@pytest.mark.parametrize(
    ("mpirun", "number"),
    [
        pytest.param(MPIRUN, 2, marks=needs_open_mpi),
        pytest.param(MPIRUN, 4, marks=needs_open_mpi),
        pytest.param(HYDRA, 2, marks=needs_mpich),
    ],
)
def test_mpirun_trains_one_run(start, tiny, tmp_path, mpirun, number):
    # In batches that are full: of fewer images per process the BatchNorm of the small net has too few.
    start((*mpirun, str(number)), tiny(f"data.num_train={16 * number}", "trainer.epochs=1"))
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/run.json")]
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", number, "adopted")
    (log,) = tmp_path.glob("outputs/*/*/logs/rank_0.log")
    assert f"(0.001 × {number} processes)" in log.read_text()
    assert len(list(log.parent.glob("rank_*.log"))) == number


@needs_open_mpi
def test_a_mistake_ends_all_processes(start, tiny, tmp_path):
    done = start((*MPIRUN, "2"), tiny("trainer.epchos=1"), is_well=False)
    assert "did you mean trainer.epochs" in done.stderr
    assert not (tmp_path / "outputs").exists()
