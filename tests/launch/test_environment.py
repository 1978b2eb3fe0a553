import pytest

import runner
from runner.base.errors import LaunchError
from runner.launch.environment import adopted_rank, first_host, rendezvous_url

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, SLURM, PMI])
def test_each_starter_says_rank_and_world(environ):
    place = adopted_rank(environ)
    assert (place.rank, place.world_size, place.local_rank) == (3, 4, 1)


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, SLURM, PMI])
@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 5_000])
def test_a_rank_that_is_no_number_does_not_train_alone(environ, value):
    name = next(name for name in environ if name.endswith(("RANK", "PROCID")))
    with pytest.raises(LaunchError, match=f"variable {name} = .* must be a number from 0, .*unset {name}"):
        adopted_rank(environ | {name: value})


@pytest.mark.parametrize("size", ["0", "3"])
def test_a_rank_is_one_of_the_processes(size):
    with pytest.raises(LaunchError, match=f"RANK.*: rank 3 of {size} processes; ranks go from 0"):
        adopted_rank(TORCHRUN | {"WORLD_SIZE": size})


def test_nobody_else_has_started_this_process():
    assert adopted_rank({"PATH": "/bin", "HOME": "/"}) is None


def test_a_batch_script_and_a_shell_of_srun_are_no_group_of_ranks():
    assert adopted_rank({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None
    assert adopted_rank(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


def test_mpirun_within_a_slurm_job_is_the_one_that_counts():
    assert "OMPI" in adopted_rank(SLURM | OPEN_MPI).starter


def test_azure_by_file_and_by_the_node_of_the_batch():
    environ = {"AZ_BATCHAI_PYTORCH_INIT_METHOD": "file:///mnt/share/meet", "AZ_BATCHAI_TASK_INDEX": "1"}
    place = adopted_rank(environ)
    assert (place.rank, place.world_size, place.rendezvous) == (1, None, "file:///mnt/share/meet")
    assert adopted_rank(OPEN_MPI | {"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}).rendezvous == "tcp://10.0.0.4:6000"


def test_ranks_of_one_job_meet_at_the_same_port_and_jobs_at_different_ones():
    first, second = (adopted_rank(SLURM | {"SLURM_PROCID": rank}).rendezvous for rank in ("0", "3"))
    assert first == second
    assert first.startswith("tcp://n1:")
    assert adopted_rank(SLURM | {"SLURM_STEP_NUM_NODES": "1"}).rendezvous.startswith("tcp://127.0.0.1:")
    assert adopted_rank(SLURM | {"SLURM_STEP_ID": "1"}).rendezvous != first


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("n1", "n1"), ("n[1-2]", "n1"), ("gpu[001-004,7],m1", "gpu001"), ("a,b", "a"), ("r1c[3]n[07]", "r1c3n07")],
)
def test_first_host_of_slurms_notation(nodes, host):
    assert first_host(nodes) == host


def test_where_they_meet_is_the_configs_word_then_the_starters():
    dist = runner.load_config(["dist.rendezvous=node7:1234"]).dist
    assert rendezvous_url(adopted_rank(TORCHRUN), dist) == "tcp://node7:1234"
    dist = runner.load_config(["dist.rendezvous=file:///mnt/share/meet"]).dist
    assert rendezvous_url(adopted_rank(TORCHRUN), dist) == "file:///mnt/share/meet"
    dist = runner.load_config().dist
    assert rendezvous_url(adopted_rank(TORCHRUN), dist) == "env://"
    with pytest.raises(LaunchError, match="MASTER_ADDR"):
        rendezvous_url(adopted_rank(OPEN_MPI), dist)
