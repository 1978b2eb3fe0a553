"""Between two reports nothing of a training waits for the device.

Where there is no GPU, torch's "meta" device plays one: its tensors have no values, so that whoever asks for one fails,
and each operation is looked at for tensors of the CPU that it brings there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import runner
from runner.base.stop import StopRequest
from runner.dist.collectives import single_process
from runner.dist.device import Precision, choose_precision
from runner.launch.preflight import preflight
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer import evaluate as evaluation
from runner.trainer.loop import Trainer
from runner.training.assemble import assemble

META = torch.device("meta")
PICTURE, LABEL = torch.Size((8, 3, 32, 32)), torch.Size((8,))
OPTIONS = (
    ("model=resnet18",),
    ("optimizer=adamw", "trainer.label_smoothing=0.1"),
    ("trainer.ema_decay=0.99",),
    ("trainer.mixup_alpha=0.2",),
    ("trainer.cutmix_alpha=1",),
    ("trainer.clip_norm=1",),
    ("trainer.accumulate_steps=2",),
    ("trainer.freeze_backbone_epochs=1",),
    ("data.balance=loss_weights", "data.on_bad_image=skip"),
    ("model=densenet121",),
    ("model=torchvision", "model.name=vit_b_16"),
)


class Crossings(TorchDispatchMode):
    """Notes the shapes of what operations bring from the CPU to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        if {tensor.device.type for tensor in tensors} == {"cpu", "meta"}:
            self.shapes += [tensor.shape for tensor in tensors if tensor.device.type == "cpu"]
        return result


class AnyPrecision(Precision):
    """Autocast knows no meta device."""

    def autocast(self, device_type: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def trainer_on(device: torch.device, precision: Precision, overrides: list[str], folder: Path) -> Trainer:
    ready = preflight(runner.load_config(overrides))
    return assemble(
        ready.config,
        ready.splits,
        CheckpointWriter(CheckpointStore(folder, keep=1)),
        dist=single_process(device),
        precision=precision,
        stop=StopRequest(),
        recorder=None,
    ).trainer


@pytest.fixture
def on_meta(tiny: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Trainer]:
    def build(*more: str) -> Trainer:
        precision = AnyPrecision(name="fp32", reason="no other")
        return trainer_on(META, precision, tiny("data.cache=none", *more), tmp_path)

    return build


@contextmanager
def under_way(trainer: Trainer) -> Iterator[Callable[[], None]]:
    """A training behind its first step; gives what takes the next one."""
    with closing(trainer.images.train_batches.stream(0, 0, 1)) as stream:
        trainer.stepper.begin_epoch()
        trainer.stepper.take(stream)
        yield lambda: trainer.stepper.take(stream)


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_a_step_brings_images_and_labels_to_the_device_and_nothing_else(on_meta, options):
    vit = any("vit" in option for option in options)
    trainer = on_meta(*options, *(("data.image_size=224",) if vit else ()))
    with under_way(trainer) as step, Crossings() as crossings:
        step()
    picture = torch.Size((8, 3, 224, 224)) if vit else PICTURE
    assert crossings.shapes == [picture, LABEL] * trainer.config.trainer.accumulate_steps


def test_images_that_are_on_the_device_cost_one_small_copy_per_step(on_meta):
    with under_way(on_meta("data.cache=device")) as step, Crossings() as crossings:
        step()
    assert crossings.shapes == [torch.Size((5, 8))], "which images, and where each is cropped"


def test_no_batch_of_evaluation_waits_for_the_device(on_meta, monkeypatch):
    trainer = on_meta()
    seen: list[torch.Size] = []
    # What reads the device, once, at the end of all batches.
    monkeypatch.setattr(evaluation._Sums, "of_all", lambda sums, dist: len(seen))
    with Crossings() as crossings:
        num_seen = evaluation.evaluate(
            trainer.state.model,
            trainer.images.val_batches,
            trainer.images.normalizer,
            dist=trainer.placement.dist,
            precision=trainer.placement.precision,
            memory_format=trainer.placement.memory_format,
            before_batch=lambda: None,
            observe=lambda batch, guesses, logits, losses, is_scored: seen.append(logits.shape),
        )
    assert num_seen == 3, "all batches were evaluated before anything was read"
    assert seen == [torch.Size((8, 4))] * 3
    assert crossings.shapes == [LABEL, PICTURE] * 3


def test_whoever_does_wait_is_noticed(on_meta):
    trainer = on_meta()
    count = torch.tensor(3)
    with under_way(trainer) as step, Crossings() as crossings:
        trainer.state.ema = type("Average", (), {"update": lambda _: count.to(META)})()
        step()
    assert crossings.shapes == [PICTURE, LABEL, count.shape]


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_cuda_notices_no_wait_either(tiny, tmp_path, options):
    size = ("data.image_size=224",) if any("vit" in option for option in options) else ()
    overrides = [item for item in tiny(*options, *size, "data.cache=none") if "precision" not in item]
    config = runner.load_config([*overrides, "trainer.device=cuda"])
    device = torch.device("cuda", 0)
    trainer = trainer_on(device, choose_precision(config.trainer, device), overrides, tmp_path)
    with under_way(trainer) as step, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not yet detect all", UserWarning)  # torch's, of the mode itself
        step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
