import json
import threading
from datetime import timedelta

import pytest
import torch

from runner.base.errors import InvalidDatasetError, LaunchError
from runner.launch.ranks.rendezvous import RankFacts, assign_ranks, open_rendezvous_store


def facts(**changes):
    values = {"host": "a", "cores": [0, 1], "config": {"optimizer.lr": 0.1, "dist.node_rank": 0}, "data": "x"}
    return RankFacts(**{**values, **changes})


def answers(everyone, seconds=20.0, world_size=None):
    """What each process is answered: its seat, or the error."""
    store, got = torch.distributed.HashStore(), {}

    def ask(rank):
        try:
            got[rank] = assign_ranks(store, rank, world_size or len(everyone), everyone[rank], seconds)[0]
        except Exception as error:
            got[rank] = error

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(everyone))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [got[rank] for rank in range(len(everyone))]


def test_seats_follow_machines_and_cores():
    rank_assignments = answers([facts(cores=[0]), facts(cores=[1]), facts(host="b"), facts(host="b")])
    assert [(own.local_rank, own.local_world_size) for own in rank_assignments] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [own.num_sharing_cores for own in rank_assignments] == [1, 1, 2, 2], (
        "bound to cores of one's own, one shares none"
    )


def test_different_configs_end_all_with_the_difference():
    other = facts(host="b", config={"optimizer.lr": 0.2, "dist.node_rank": 1})
    errors = answers([facts(), other])
    assert all(isinstance(error, LaunchError) for error in errors)
    assert all("rank 1 on b" in str(error) and "optimizer.lr = 0.2 there, 0.1 here" in str(error) for error in errors)
    assert "node_rank" not in str(errors[0]), "machines have different numbers"


def test_different_data_end_all():
    assert all("another data set" in str(error) for error in answers([facts(), facts(data="y")]))


def test_a_refusal_of_one_ends_all_under_its_name():
    refused = facts(host="b", config=None, refusal=("InvalidDatasetError", "no images"))
    errors = answers([facts(), refused, facts()])
    assert all(isinstance(error, InvalidDatasetError) for error in errors)
    assert str(errors[0]) == "no images [rank 1 on b]"


def test_what_an_attempt_that_was_killed_has_left_is_not_believed():
    store = torch.distributed.HashStore()
    killed = torch.distributed.PrefixStore("runner/old", store)
    own = {"local_rank": 7, "local_world_size": 8, "num_sharing_cores": 8}
    killed.set("answer", json.dumps({"rank_assignments": [own, own], "tokens": ["x", "y"]}))
    killed.set("readers", "2")
    store.set("runner/open", "old")
    got = {}
    thread = threading.Thread(target=lambda: got.update(own=assign_ranks(store, 1, 2, facts(), 20.0)))
    thread.start()
    killed.wait(["facts/1"], timedelta(seconds=20))  # rank 1 comes before rank 0 and finds the old space
    assign_ranks(store, 0, 2, facts(), 20.0)
    thread.join()
    assert got["own"][0].local_rank == 1
    assert not store.check(["runner/open"]), "the next attempt finds none"


def test_who_is_missing_is_said(monkeypatch):
    monkeypatch.setattr("runner.launch.ranks.rendezvous._MOST_SECONDS_TO_LEAVE", 0.5)
    errors = answers([facts(), facts()], seconds=0.3, world_size=3)
    assert all("2 of 3 processes connected within 0.3 seconds" in str(error) for error in errors[:1])
    assert "missing: rank 2" in str(errors[0])


def test_nobody_answers():
    with pytest.raises(
        LaunchError, match=r"rank 1 of 2 can't connect to the others at tcp://127.0.0.1:9 within 1 seconds"
    ):
        open_rendezvous_store("tcp://127.0.0.1:9", 1, 2, 1.0)


def test_by_a_file(tmp_path):
    store = open_rendezvous_store(f"file://{tmp_path}/meet", 0, 1, 5.0)
    assert assign_ranks(store, 0, 1, facts(), 5.0)[0].local_rank == 0


@pytest.mark.parametrize(("networks", "is_one"), [(("x", "x"), True), (("x", "y"), False), (("", ""), False)])
def test_processes_that_share_a_loopback_interface_are_told(networks, is_one):
    rank_assignments = answers([facts(network=network) for network in networks])
    assert [own.is_one_machine for own in rank_assignments] == [is_one, is_one]


@pytest.mark.parametrize("told", ["[1]", "no JSON", '{"rank_assignments": []}', "\udcff"])
def test_an_answer_that_no_process_gives_is_named(told):
    store = torch.distributed.HashStore()
    store.set("runner/open", "x")
    torch.distributed.PrefixStore("runner/x", store).set("answer", told.encode("utf-8", "surrogateescape"))
    with pytest.raises(LaunchError, match="another program writes there"):
        assign_ranks(store, 1, 2, facts(), 20.0)


def test_devices_of_two_kinds_end_all():
    on_gpu, on_cpu = facts(device="cuda"), facts(host="b", device="cpu")
    for error in answers([on_gpu, on_gpu, on_cpu]):
        assert isinstance(error, LaunchError)
        assert "rank 2 on b would compute on cpu, rank 0 on a on cuda" in str(error)


def test_a_gpu_has_one_process():
    apart = answers([facts(gpu="x"), facts(gpu="y"), facts(), facts()])
    assert [own.local_rank for own in apart] == [0, 1, 2, 3], "empty is unknown"
    for error in answers([facts(gpu="x"), facts(gpu="y"), facts(gpu="x")]):
        assert isinstance(error, LaunchError)
        assert "rank 0 on a and rank 2 on a would share the GPU x" in str(error)
