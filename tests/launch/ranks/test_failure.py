"""Which failures of an exchange are only the echo of another's."""

from __future__ import annotations

import pytest
from torch.distributed import DistBackendError

from runner.base.errors import RankLostError
from runner.launch.ranks.failure import as_lost_peer, correct_record, record_failure
from runner.run.run_folder import RunFolder, read_record

WHERE = "NCCL error in: /src/ProcessGroupNCCL.cpp:3690, {}, NCCL version 2.27.5\n"
CLOSED = (
    WHERE.format("remote process exited or there was a network error")
    + "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    + "Last error:\nsocketProgress: Connection closed by remote peer\n  node7<41234>"
)
SHARED = (
    WHERE.format("invalid usage (run with NCCL_DEBUG=WARN for details)")
    + "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    + "Last error:\nMultiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1"
)


def test_a_lost_peer_is_told_with_the_reason_that_nccl_gives():
    told = as_lost_peer(DistBackendError(CLOSED))
    assert isinstance(told, RankLostError)
    assert str(told).endswith("socketProgress: Connection closed by remote peer node7<41234>)")
    assert "remote process exited" in str(told)


@pytest.mark.parametrize("text", ["Connection closed by peer [10.0.0.1]:5", "[gloo/transport/tcp/pair.cc:534] reset"])
def test_gloo_gives_no_more_than_a_line(text):
    assert f"({text})" in str(as_lost_peer(RuntimeError(text)))


@pytest.mark.parametrize("kind", ["ncclInvalidUsage", "ncclInvalidArgument", "ncclUnhandledCudaError"])
def test_what_a_process_does_wrong_itself_is_no_echo(kind):
    error = DistBackendError(SHARED.replace("ncclInvalidUsage", kind))
    assert as_lost_peer(error) is error
    record = record_failure(1, error, None)
    assert not record.is_echo
    assert "Multiple Ranks are using the same GPU" in str(record.as_error())


def test_other_errors_stay_what_they_are():
    error = RuntimeError("a defect")
    assert as_lost_peer(error) is error


def test_a_full_disk_hides_no_failure_of_a_process(tmp_path, full_disk, caplog):
    folder = RunFolder(tmp_path)
    folder.begin({})
    full_disk.fill()
    failure = record_failure(1, RuntimeError("a defect"), None)
    failure.write(tmp_path)
    assert "rank 1 on" in caplog.text
    assert "could not write its error file" in caplog.text
    correct_record(tmp_path, failure, num_earlier=0)
    assert "the failure could not be written to run.json" in caplog.text
    assert read_record(tmp_path)["status"] == "running"
