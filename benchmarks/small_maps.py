"""Weight gradients by a product: `python benchmarks/small_maps.py [--small] [--repeats 3]`.

A plain step in bf16 on the CPU with the gradients of :func:`runner.trainer.on_cpu.weight_gradients_by_product` and with
oneDNN's, and of single convolutions (3 × 3, to results of few positions) the weights' gradient alone; seconds, in turns
within a process, since processes differ by more. DenseNet-121 has too few weights per convolution to be treated in any
way: its row shows what it costs to look. On other CPUs than those with AVX-512 bf16 and without AMX the runner leaves
everything to oneDNN, whatever this says.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import side_by_side

BATCH_SIZE = 32
MODELS = {"ResNet-18 64 px": ("resnet18", 64), "DenseNet-121 64 px": ("densenet121", 64)}
WAYS = ("product", "oneDNN")
# Channels, and the side of images and result, of 3 × 3 kernels.
CONVOLUTIONS = ((512, 512, 1), (512, 512, 2), (512, 512, 3), (256, 256, 4), (128, 256, 4), (128, 128, 4), (256, 256, 5))
NUM_TURNS = 20
NUM_WARM_UP = 3


def in_turns(name: str, actions: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """The median seconds of each."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(NUM_WARM_UP + count):
        for way in WAYS if turn % 2 == 0 else reversed(WAYS):
            started = time.perf_counter()
            actions[way]()
            seconds[way].append(time.perf_counter() - started)
    return {f"{name}, {way}": statistics.median(seconds[way][NUM_WARM_UP:]) for way in WAYS}


def measured_here(*, small: bool) -> dict[str, float]:
    """The figures of one run, in this process."""
    from runner.base.process import freed_memory_kept  # noqa: PLC0415 - imports are not what is measured
    from runner.trainer import on_cpu  # noqa: PLC0415

    count = 2 if small else NUM_TURNS
    figures: dict[str, float] = {}
    with freed_memory_kept(), mock.patch.object(on_cpu, "_was_measured_on_such_a_cpu", lambda: True):
        for name, (model, side) in MODELS.items():
            figures |= in_turns(name, whole_steps(model, side), count)
        for num_in, num_out, side in CONVOLUTIONS:
            figures |= in_turns(
                f"{num_in} to {num_out} channels, {side} × {side}", gradients(num_in, num_out, side), count
            )
    return figures


def whole_steps(model: str, side: int) -> dict[str, Callable[[], object]]:
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    from runner.dist.device import Precision  # noqa: PLC0415
    from runner.trainer.on_cpu import step_without_copies, weight_gradients_by_product  # noqa: PLC0415

    device, precision = torch.device("cpu"), Precision(name="bf16", reason="as measured here")
    module = torchvision.models.get_model(model, num_classes=10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9, fused=True)
    images = torch.randn(BATCH_SIZE, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH_SIZE,))

    def step(way: str) -> None:
        by_product = weight_gradients_by_product(device, precision) if way == "product" else nullcontext()
        with precision.autocast("cpu"), by_product:
            loss = functional.cross_entropy(module(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        with step_without_copies(device):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return {"product": lambda: step("product"), "oneDNN": lambda: step("oneDNN")}


def gradients(num_in: int, num_out: int, side: int) -> dict[str, Callable[[], object]]:
    import torch  # noqa: PLC0415

    from runner.trainer.on_cpu import _weight_gradient  # noqa: PLC0415

    def channels_last(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).bfloat16().contiguous(memory_format=torch.channels_last)

    images, weight = channels_last(BATCH_SIZE, num_in, side, side), channels_last(num_out, num_in, 3, 3)
    gradient, ones = channels_last(BATCH_SIZE, num_out, side, side), (1, 1)
    wanted = [False, True, False]
    return {
        "product": lambda: _weight_gradient(images, gradient, weight.shape, ones, ones),
        "oneDNN": lambda: torch.ops.aten.convolution_backward(
            gradient, images, weight, None, ones, ones, ones, False, [0, 0], 1, wanted
        ),
    }


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--here", action="store_true", help="measure here and now, once")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured_here(small=options.small)))
        return
    print("weight gradients by a product", flush=True)
    command = ["small_maps.py", "--here", *(["--small"] if options.small else [])]
    with tempfile.TemporaryDirectory() as name:
        sides = side_by_side.scripts({"both, in turns": command}, Path(name))
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    (both,) = measured.values()
    products = [figure for figure in both.runs[0] if figure.endswith("product")]
    side_by_side.record(
        "small_maps",
        measured,
        {
            figure.removesuffix(", product"): statistics.median(
                run[figure] / run[figure.replace("product", "oneDNN")] for run in both.runs
            )
            for figure in products
        },
        small=options.small,
        work=f"a product's time to oneDNN's, bf16 on the CPU, batches of {BATCH_SIZE}",
    )


if __name__ == "__main__":
    main()
