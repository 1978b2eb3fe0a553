"""Loading alone, on one core: `python benchmarks/loader.py [--small] [--repeats 3]`.

Photographs of 500 × 375 px, JPEG, to augmented crops of 224 px in batches: the runner's loader in the training process,
without and with data.cache=memory (from the second epoch on), against torchvision's classic path: PIL, random resized
crop, flip, float, normalise, in PyTorch's DataLoader. Goals: 1.8 and 5 times as many images/s. And scikit-learn's
digits, of 32 px: data.cache=device against data.cache=none. Goal: 5 times as many.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path

import side_by_side
import torch
from photographs import make_photographs
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

BATCH_SIZE = 32
IMAGE_SIZE = 224
SIDES = ("runner", "packed", "classic", "digits", "digits cached")


def rate(batches: Iterable[torch.Tensor], num_batches: int) -> float:
    """Images/s after one batch that does not count."""
    iterator = iter(batches)
    next(iterator)
    started = time.perf_counter()
    num_images = sum(len(images) for images in islice(iterator, num_batches))
    return num_images / (time.perf_counter() - started)


def classic(folder: Path, num_batches: int) -> float:
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(IMAGE_SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    loader = DataLoader(ImageFolder(str(folder / "train"), transform), batch_size=BATCH_SIZE, shuffle=True)
    return rate((images for images, _ in loader), num_batches)


def ours(typed: list[str], num_batches: int, *, first_epoch: int = 0) -> float:
    """Of the loader as it is from this epoch on; those before are gone through."""
    from contextlib import ExitStack  # noqa: PLC0415 - only this side imports the runner
    from tempfile import TemporaryDirectory  # noqa: PLC0415

    from loop import build  # noqa: PLC0415

    import runner  # noqa: PLC0415
    from runner.launch.preflight import preflight  # noqa: PLC0415
    from runner.run.run_folder import RunFolder  # noqa: PLC0415

    overrides = [*typed, f"data.batch_size={BATCH_SIZE}", "data.workers=0"]
    with TemporaryDirectory() as name, ExitStack() as stack:
        trainer = build(preflight(runner.load_config(overrides)), RunFolder(Path(name)), stack)
        with closing(trainer.images.train_batches.stream(0, 0, first_epoch + 2)) as stream:
            for _ in islice(stream, first_epoch * trainer.images.train_batches.plan.batches_per_epoch):
                pass
            return rate((batch.images for batch in stream), num_batches)


def measured_here(side: str, folder: Path, num_batches: int) -> float:
    """Images/s of one side."""
    photographs = ["data=folder", f"data.root={folder}"]
    match side:
        case "classic":
            return classic(folder, num_batches)
        case "runner":
            return ours([*photographs, "data.cache=none"], num_batches)
        case "packed":
            return ours([*photographs, "data.cache=memory"], num_batches, first_epoch=1)
        case "digits":
            return ours(["data.cache=none"], num_batches)
        case "digits cached":
            return ours(["data.cache=device"], num_batches)
        case _:
            raise ValueError(side)


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--side", choices=SIDES, help="measure this side here and now")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--batches", type=int)
    options = parser.parse_args()
    if options.side:
        torch.set_num_threads(1)
        print(json.dumps({"images_per_second": measured_here(options.side, options.folder, options.batches)}))
        return
    print("loader alone, one core", flush=True)
    num_batches = 2 if options.small else 24
    with tempfile.TemporaryDirectory() as name:
        folder = make_photographs(
            Path(name), num_train=(num_batches + 1) * BATCH_SIZE, num_val=BATCH_SIZE, width=500, height=375
        )
        arguments = ["--folder", str(folder), "--batches", str(num_batches)]
        commands = {side: ["loader.py", "--side", side, *arguments] for side in SIDES}
        sides = side_by_side.scripts(commands, folder, threads=1)
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    rates = {side: runs.median("images_per_second") for side, runs in measured.items()}
    side_by_side.record(
        "loader",
        measured,
        {
            "to_classic_path": rates["runner"] / rates["classic"],
            "packed_to_classic_path": rates["packed"] / rates["classic"],
            "cached_to_per_sample": rates["digits cached"] / rates["digits"],
        },
        small=options.small,
        work="JPEG photographs of 500×375 px to augmented crops of 224 px, and digits of 32 px; one core",
    )


if __name__ == "__main__":
    main()
