"""Exchanges between real processes: evaluation, votes, buffers, freezing."""

from __future__ import annotations

import json
import multiprocessing
from datetime import timedelta

import pytest
import torch
from torch import nn

from runner.config.schema.data import SyntheticData
from runner.data.images.transforms import pipeline_of
from runner.data.loader.loader import EvalBatches
from runner.data.sources.synthetic import open_synthetic
from runner.dist.collectives import DistContext, Vote, single_process
from runner.dist.device import Precision
from runner.trainer.evaluate import evaluate

CPU = torch.device("cpu")


def context(rank, world_size, folder):
    torch.set_num_threads(1)
    if world_size == 1:
        return single_process(CPU)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size, timeout=timedelta(seconds=30)
    )
    return DistContext(rank=rank, local_rank=rank, world_size=world_size, num_sharing_cores=world_size, device=CPU)


def in_processes(world_size, folder, task, *arguments):
    """The results of task(dist, *arguments) in so many processes, by rank."""
    folder.mkdir()

    def run(rank):
        result = task(context(rank, world_size, folder), *arguments)
        (folder / f"{rank}.json").write_text(json.dumps(result))

    processes = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 225, 7))


def measured(dist, num_images, batch_size):
    data = SyntheticData.model_construct(
        channels=3, bit_depth=8, image_size=32, num_classes=7, num_train=8, num_val=num_images
    )
    model = net()
    # Each rank has seen other images; what is evaluated is what rank 0 saves.
    model[1].running_mean += dist.rank
    dist.broadcast_buffers(model)
    batches = EvalBatches(
        open_synthetic(data, 1).val,
        pipeline_of(()),
        batch_size=batch_size,
        rank=dist.rank,
        world_size=dist.world_size,
        workers=0,
        pin_memory=False,
    )
    normalizer = type("Scale", (nn.Module,), {"forward": lambda self, images: images.float() / 255})()
    result = evaluate(
        model,
        batches,
        normalizer,
        dist=dist,
        precision=Precision(name="fp32", reason=""),
        memory_format=torch.contiguous_format,
        before_batch=lambda: None,
    )
    return [result.count, result.top1, result.top5, result.loss.hex()]


@pytest.mark.parametrize(("num_images", "batch_size"), [(359, 16), (3, 1), (3, 2)])
def test_metrics_are_the_same_to_the_last_digit_for_any_number_of_processes(tmp_path, num_images, batch_size):
    results = [
        result
        for world_size in (1, 2, 3, 4)
        for result in in_processes(world_size, tmp_path / str(world_size), measured, num_images, batch_size)
    ]
    assert len(results) == 10
    assert all(result == results[0] for result in results)
    assert results[0][0] == num_images


def votes(dist):
    vote = Vote(dist)
    return [vote.cast(15 if dist.rank == 1 and step == 2 else 0) for step in range(5)]


def test_a_request_to_one_process_reaches_all_at_the_same_step(tmp_path):
    assert in_processes(3, tmp_path / "votes", votes) == [[0, 0, 0, 15, 0]] * 3


def least(dist):
    return [dist.smallest(7 if dist.rank == 1 else None), dist.smallest(None)]


def test_the_minimum_over_the_processes_that_have_a_number(tmp_path):
    assert in_processes(2, tmp_path / "least", least) == [[7, None]] * 2


def gradients(dist):
    model = net()
    torch.manual_seed(dist.rank)
    images = torch.rand(4, 3, 32, 32)
    for frozen in (True, False):
        for parameter in model[:4].parameters():
            parameter.requires_grad_(not frozen)
        replica = dist.replicate(model, is_graph_static=True)
        replica(images).square().sum().backward()
    return [parameter.grad.double().sum().item() for parameter in model.parameters()]


def test_gradients_of_parameters_that_are_unfrozen_later_are_reduced(tmp_path):
    first, second = in_processes(2, tmp_path / "gradients", gradients)
    assert first == second
    assert all(first)


def told(dist):
    mine = [[dist.rank, "é\udcff", None, 0.1], {"of": dist.rank}] if dist.rank else [["x" * 1000]]
    return [dist.gather(mine), dist.broadcast_object({"rank": dist.rank, "list": [1, 2.5, None]}), dist.gather([])]


def test_plain_values_are_the_same_in_all_processes(tmp_path):
    first, second, third = in_processes(3, tmp_path / "three", told)
    assert first == second == third
    everyone, shared, nothing = first
    assert everyone[0] == ["x" * 1000]
    assert everyone[1:3] == [[1, "é\udcff", None, 0.1], {"of": 1}] and everyone[4] == {"of": 2}
    assert shared == {"rank": 0, "list": [1, 2.5, None]}
    assert nothing == []
