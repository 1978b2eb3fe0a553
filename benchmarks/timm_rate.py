"""`model=timm` against timm's own train.py: `python benchmarks/timm_rate.py TIMM_FOLDER [--small] [--repeats 3]`.

TIMM_FOLDER is a clone of https://github.com/huggingface/pytorch-image-models. Two of its models are trained on the same
JPEGs, decoded in each epoch, with the same crop, batch size, number format and loader processes; the rate is that of
the last epoch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import side_by_side
import torch
import trainers
from photographs import make_photographs
from trainers import Place

from runner.data.loader.workers import resolve_workers

# With what each side needs for crops of 64 px.
MODELS: dict[str, tuple[list[str], list[str]]] = {
    "resnet18": ([], []),
    "vit_tiny_patch16_224": (["model.img_size=64"], ["--model-kwargs", "img_size=64"]),
}
WIDTH, HEIGHT = 500, 375


def ours(place: Place, model: str) -> list[str]:
    """The runner's command for one of timm's models, in bf16 as its train.py is told to be."""
    given = [item for item in trainers.ours(place) if not item.startswith("model=")]
    return [*given, "model=timm", f"model.name={model}", *MODELS[model][0], "data.cache=none", "trainer.precision=bf16"]


def main() -> None:
    """Train each model with both and record the results."""
    parser = side_by_side.parser(__doc__)
    parser.add_argument("timm", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    num_train, num_val, epochs = (64, 32, 1) if options.small else (960, 320, 2)
    with tempfile.TemporaryDirectory() as name:
        place = Place(
            data=make_photographs(
                Path(name) / "data", num_train=num_train, num_val=num_val, width=WIDTH, height=HEIGHT
            ),
            outputs=Path(name) / "outputs",
            device=device,
            workers=resolve_workers("auto", device, 1),
            epochs=epochs,
        )
        folder = options.timm.resolve()
        sides = []
        for model in MODELS:
            theirs = [*trainers.timm(place, folder, sys.executable, model=model), *MODELS[model][1]]
            sides += [
                trainers.side(f"runner, {model}", ours(place, model), place, trainers.rate_of_ours),
                trainers.side(f"timm, {model}", theirs, place, trainers.rate_of_timm, folder),
            ]
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    ratios = {
        f"{model}_rate": measured[f"runner, {model}"].median("images_per_second")
        / measured[f"timm, {model}"].median("images_per_second")
        for model in MODELS
    }
    side_by_side.record(
        "timm_rate",
        measured,
        ratios,
        small=options.small,
        work=f"Two of timm's models, JPEGs of {WIDTH}×{HEIGHT} px to crops of {trainers.CROP}, batch "
        f"{trainers.BATCH_SIZE}, {epochs} epochs, bf16, {device}",
    )


if __name__ == "__main__":
    main()
