"""Steps on the CPU with freed memory kept, and without: `python benchmarks/allocator.py [--small] [--repeats 3]`.

A plain step of torch with SGD in bf16 where the CPU has it, once as :mod:`runner.base.process` has it during a
training, once as glibc has it by default: seconds per step, pages that the system had to hand out anew, and the most
memory that was in use.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import side_by_side

# Model, side of its square images in pixels, batch size, steps.
WORKS = {"ResNet-18 64 px": ("resnet18", 64, 32, 40), "ResNet-50 224 px": ("resnet50", 224, 16, 8)}
ALLOCATORS = ("kept", "default")
NUM_WARM_UP = 3


def measured_here(work: str, allocator: str, *, small: bool) -> dict[str, float]:
    """The figures of one side, in this process."""
    import torch  # noqa: PLC0415 - by the sides alone
    import torchvision  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    from runner.base.process import freed_memory_kept  # noqa: PLC0415
    from runner.dist.device import choose_precision  # noqa: PLC0415

    name, side, batch_size, num_steps = WORKS[work]
    num_steps = 2 if small else num_steps
    device = torch.device("cpu")
    precision = choose_precision(SimpleNamespace(device="cpu", precision="auto"), device)
    model = torchvision.models.get_model(name, num_classes=10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=True)
    images = torch.randn(batch_size, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch_size,))
    seconds: list[float] = []
    with freed_memory_kept() if allocator == "kept" else nullcontext():
        for number in range(NUM_WARM_UP + num_steps):
            if number == NUM_WARM_UP:
                pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            started = time.perf_counter()
            with precision.autocast("cpu"):
                loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(time.perf_counter() - started)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step_seconds": statistics.median(seconds[NUM_WARM_UP:]),
        "new_pages_per_step": (usage.ru_minflt - pages) / num_steps,
        "highest_bytes": usage.ru_maxrss * 1024,
    }


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--side", nargs=2, metavar=("WORK", "ALLOCATOR"), help="measure this side here and now")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured_here(*options.side, small=options.small)))
        return
    print("freed memory kept", flush=True)
    small = ["--small"] if options.small else []
    commands = {
        f"{work}, {allocator}": ["allocator.py", "--side", work, allocator, *small]
        for work in WORKS
        for allocator in ALLOCATORS
    }
    with tempfile.TemporaryDirectory() as name:
        sides = side_by_side.scripts(commands, Path(name))
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    seconds = {side: runs.median("step_seconds") for side, runs in measured.items()}
    side_by_side.record(
        "allocator",
        measured,
        {work: seconds[f"{work}, kept"] / seconds[f"{work}, default"] for work in WORKS},
        small=options.small,
        work="a step of SGD on the CPU, batches of 32 and of 16",
    )


if __name__ == "__main__":
    main()
