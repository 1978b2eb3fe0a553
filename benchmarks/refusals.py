"""What a user sees and waits for when something is wrong: `python benchmarks/refusals.py [repeats]`.

Runs `python -m runner` with one kind of mistake after another, several times, and records the message and the median
of the seconds to the refusal in benchmarks/results/refusals.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "refusals.json"


def make_images(folder: Path, classes: list[str], num_images: int) -> None:
    """Write a few real scans per class."""
    scans = load_digits().images
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(num_images):
            Image.fromarray((scans[label * num_images + number] * 15.9).astype("uint8")).save(
                folder / name / f"{number}.png"
            )


def prepare(place: Path) -> None:
    """Make the data sets, weights and configs that are wrong."""
    (place / "empty").mkdir()
    (place / "unlabelled" / "train").mkdir(parents=True)
    make_images(place / "loose", ["x"], 2)
    for image in (place / "loose" / "x").iterdir():
        image.rename(place / "unlabelled" / "train" / image.name)
    make_images(place / "stranger" / "train", ["ant", "bee"], 8)
    make_images(place / "stranger" / "val", ["ant", "wasp"], 2)
    make_images(place / "good" / "train", ["ant", "bee"], 8)
    make_images(place / "good" / "val", ["ant", "bee"], 2)
    torch.save(torchvision.models.resnet34(num_classes=2).state_dict(), place / "resnet34.pth")
    (place / "page.pth").write_text("<html>404</html>")
    (place / "conf" / "experiment").mkdir(parents=True)
    (place / "conf" / "experiment" / "typo.yaml").write_text("# @package _global_\ntrainer:\n  epchos: 5\n")


def cases(place: Path) -> dict[str, list[str]]:
    """The arguments for each kind of mistake."""
    good = ["data=folder", f"data.root={place}/good"]
    return {
        "a typo on the command line": ["trainer.epchos=5"],
        "a typo in an experiment file": ["--config-dir", f"{place}/conf", "experiment=typo"],
        "a typo behind +": ["+trainer.epchos=5"],
        "three mistakes at once": ["trainer.epchos=5", "model=resnet51", "optimizer.lr=-1"],
        "a negative number of epochs": ["trainer.epochs=-3"],
        "a word for a number": ["trainer.epochs=five"],
        "an unknown model": ["model=resnet51"],
        "warm-up as long as training": ["trainer.epochs=5", "schedule.warmup_epochs=5"],
        "fp16 on the CPU": ["trainer.device=cpu", "trainer.precision=fp16"],
        "weights of another architecture (name)": ["model.weights=ResNet50_Weights.IMAGENET1K_V2"],
        "a missing folder": ["data=folder", f"data.root={place}/missing"],
        "an empty folder": ["data=folder", f"data.root={place}/empty"],
        "an unlabelled folder": ["data=folder", f"data.root={place}/unlabelled"],
        "val with an unknown class": ["data=folder", f"data.root={place}/stranger"],
        "a batch larger than the split": [*good, "data.batch_size=99"],
        "a read-only output folder": [*good, "output_dir=/proc/outputs"],
        "weights of another architecture (file)": [*good, f"model.weights={place}/resnet34.pth"],
        "weights that are no weights": [*good, f"model.weights={place}/page.pth"],
    }


def refuse(arguments: list[str], repeats: int, cwd: Path) -> dict[str, object]:
    """Run one case several times."""
    command = [sys.executable, "-m", "runner", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - started)
    message = done.stderr.replace(str(cwd.parent), "…").strip()
    return {
        "exit_code": done.returncode,
        "message": message,
        "median_seconds": round(statistics.median(seconds), 2),
        "left_behind": [str(path) for path in cwd.iterdir()],
    }


def main() -> None:
    """Try all cases and record the results."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)
        (place / "work").mkdir()
        found = {name: refuse(arguments, repeats, place / "work") for name, arguments in cases(place).items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, "cores": os.cpu_count(), "cases": found}, indent=2) + "\n")
    for name, result in found.items():
        print(f"\n{name}: exit code {result['exit_code']} after {result['median_seconds']} s\n{result['message']}")


if __name__ == "__main__":
    main()
