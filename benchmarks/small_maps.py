"""Weight gradients by a product: `python benchmarks/small_maps.py [--small] [--repeats 3]`.

A plain step in bf16 on the CPU, once with the gradients of :func:`runner.trainer.on_cpu.weight_gradients_by_product`,
once with oneDNN's: seconds per step, and of single convolutions (named by input channels, output channels and the side
of their result) the milliseconds of the weights' gradient alone. The figures of other CPUs than those with AVX-512
bf16 and without AMX are only for information: there the runner leaves all to oneDNN; and so it does, anywhere, what has
few weights, as all of DenseNet-121.
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
GRADIENTS = ("product", "oneDNN")
# Channels, and the side of images and result, of 3 × 3 kernels.
CONVOLUTIONS = ((512, 512, 1), (512, 512, 2), (512, 512, 3), (256, 256, 4), (128, 128, 4), (256, 256, 5), (128, 128, 8))
NUM_STEPS = 20
NUM_WARM_UP = 3


def median_seconds(action: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(NUM_WARM_UP + count):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[NUM_WARM_UP:])


def measured_here(gradients: str, *, small: bool) -> dict[str, float]:
    """The figures of one side, in this process."""
    import torch  # noqa: PLC0415 - by the sides alone

    from runner.allocator import freed_memory_kept  # noqa: PLC0415
    from runner.device import Precision  # noqa: PLC0415
    from runner.trainer import on_cpu  # noqa: PLC0415

    count = 2 if small else NUM_STEPS
    figures = {}
    precision = Precision(name="bf16", reason="as measured here")
    with freed_memory_kept(), mock.patch.object(on_cpu, "_was_measured_on_such_a_cpu", lambda: True):
        by_product = on_cpu.weight_gradients_by_product(torch.device("cpu"), precision)
        context = by_product if gradients == "product" else nullcontext()
        for name, (model, side) in MODELS.items():
            figures[f"{name}: step_seconds"] = median_seconds(whole_step(model, side, context), count)
        for num_in, num_out, side in CONVOLUTIONS:
            backward = gradient_of(num_in, num_out, side, by_product=gradients == "product")
            figures[f"{num_in}, {num_out}, {side}: milliseconds"] = 1000 * median_seconds(backward, count)
    return figures


def whole_step(model: str, side: int, context: object) -> Callable[[], object]:
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    from runner.trainer.on_cpu import step_without_copies  # noqa: PLC0415

    module = torchvision.models.get_model(model, num_classes=10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9, fused=True)
    images = torch.randn(BATCH_SIZE, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH_SIZE,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16), context:  # type: ignore[attr-defined]
            loss = functional.cross_entropy(module(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        with step_without_copies(torch.device("cpu")):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gradient_of(num_in: int, num_out: int, side: int, *, by_product: bool) -> Callable[[], object]:
    import torch  # noqa: PLC0415

    from runner.trainer.on_cpu import _weight_gradient  # noqa: PLC0415

    def channels_last(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).bfloat16().contiguous(memory_format=torch.channels_last)

    images, weight = channels_last(BATCH_SIZE, num_in, side, side), channels_last(num_out, num_in, 3, 3)
    gradient, ones = channels_last(BATCH_SIZE, num_out, side, side), (1, 1)
    if by_product:
        return lambda: _weight_gradient(images, gradient, weight.shape, ones, ones)
    wanted = [False, True, False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, images, weight, None, ones, ones, ones, False, [0, 0], 1, wanted
    )


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--side", choices=GRADIENTS, help="measure this side here and now")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured_here(options.side, small=options.small)))
        return
    print("weight gradients by a product", flush=True)
    small = ["--small"] if options.small else []
    commands = {gradients: ["small_maps.py", "--side", gradients, *small] for gradients in GRADIENTS}
    with tempfile.TemporaryDirectory() as name:
        measured = side_by_side.compare(side_by_side.scripts(commands, Path(name)), side_by_side.repeats_of(options))
    product, onednn = (measured[gradients] for gradients in GRADIENTS)
    side_by_side.record(
        "small_maps",
        measured,
        {figure.partition(":")[0]: product.median(figure) / onednn.median(figure) for figure in product.runs[0]},
        small=options.small,
        work=f"bf16 on the CPU, batches of {BATCH_SIZE}",
    )


if __name__ == "__main__":
    main()
