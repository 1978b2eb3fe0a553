import pytest

import runner
from runner.base.errors import InvalidDatasetError, LaunchError
from runner.launch import plan as mode
from runner.launch.environment import adopted_rank
from runner.launch.plan import choose_launch
from runner.launch.preflight import preflight
from tests.launch.test_environment import OPEN_MPI, TORCHRUN


def plan_of(*overrides, environ=None):
    return choose_launch(runner.load_config(overrides), adopted_rank(environ) if environ else None)


@pytest.fixture
def gpus(monkeypatch):
    def present(number):
        monkeypatch.setattr(mode, "num_usable_gpus", lambda: number)

    return present


def test_one_process_is_this_one(gpus):
    gpus(0)
    plan = plan_of()
    assert (plan.mode, plan.world_size) == ("inline", 1)
    assert "dist.procs_per_node = auto: no GPUs" in plan.reason


def test_a_process_for_each_gpu(gpus):
    gpus(8)
    plan = plan_of()
    assert (plan.mode, plan.world_size) == ("elastic", 8)
    assert "auto: 8 GPUs" in plan.reason
    assert plan_of("trainer.device=cpu").mode == "inline"


def test_processes_above_the_gpus_are_refused_with_both_numbers(gpus):
    gpus(2)
    with pytest.raises(LaunchError, match=r"procs_per_node = 4.*has 2 GPUs"):
        plan_of("dist.procs_per_node=4")
    assert plan_of("dist.procs_per_node=4", "trainer.device=cpu").world_size == 4


def test_more_processes_than_the_cores_could_ever_carry_are_refused(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert plan_of("dist.procs_per_node=32", "trainer.device=cpu").world_size == 32
    with pytest.raises(LaunchError, match=r"procs_per_node = 33, but this machine has 2 cores.*at most 32"):
        plan_of("dist.procs_per_node=33", "trainer.device=cpu")


def test_machines_need_a_place_to_meet():
    with pytest.raises(LaunchError) as refusal:
        plan_of("dist.nodes=2")
    for way in ("dist.nodes = 2", "dist.rendezvous=HOST:PORT", "torchrun", "dist=slurm"):
        assert way in str(refusal.value)
    plan = plan_of("dist.nodes=2", "dist.procs_per_node=3", "dist.rendezvous=node0:29400", "trainer.device=cpu")
    assert (plan.mode, plan.world_size) == ("elastic", 6)


def test_adopted_takes_the_world_of_its_starter():
    plan = plan_of(environ=TORCHRUN)
    assert (plan.mode, plan.world_size, plan.place.rank) == ("adopted", 4, 3)
    assert "WORLD_SIZE" in plan.reason


def test_adopted_refuses_another_number_than_there_is():
    with pytest.raises(LaunchError, match=r"dist.nodes = 3.*2 machines"):
        plan_of("dist.nodes=3", environ=TORCHRUN)
    with pytest.raises(LaunchError, match=r"procs_per_node = 8.*started 2"):
        plan_of("dist.procs_per_node=8", environ=OPEN_MPI)


def test_forced_modes_that_cannot_be():
    with pytest.raises(LaunchError, match=r"launcher = adopted.*OMPI_COMM_WORLD_RANK"):
        plan_of("dist.launcher=adopted")
    with pytest.raises(LaunchError, match=r"inline is one process.* are 2"):
        plan_of("dist.launcher=inline", "dist.procs_per_node=2", "trainer.device=cpu")
    assert plan_of("dist.launcher=elastic", "trainer.device=cpu").mode == "elastic"


def test_a_split_smaller_than_the_global_batch_is_refused(tiny):
    with pytest.raises(InvalidDatasetError, match=r"needs 48 images .*8 × 6 processes.*has only 40"):
        preflight(runner.load_config(tiny("dist.procs_per_node=6")))
