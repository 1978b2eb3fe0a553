"""Seconds that `predict` takes per 1,000 images against a plain loop: `python benchmarks/predict_rate.py [repeats]`.

The plain loop is what one would write: PIL, torchvision's transforms, ResNet-18 at 224 px in fp32, batches of 32, a
line of CSV per image, all in one process. Both score the same JPEG files of 500 × 375 px, started anew each time
(imports included) and in turns; results go to benchmarks/results/predict_rate.json. `predict` is run in fp32 too, and
once more as it is by default.
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

import numpy as np
from PIL import Image

import runner

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "predict_rate.json"
NUM_IMAGES = 1000
PLAIN_LOOP = """
import csv, json, pathlib, sys
import safetensors.torch, torch, torchvision
from PIL import Image
from torchvision.transforms import v2

run, folder, output = map(pathlib.Path, sys.argv[1:])
classes = json.loads((run / "classes.json").read_text())
model = torchvision.models.resnet18(num_classes=len(classes))
model.load_state_dict(safetensors.torch.load_file(run / "model" / "model.safetensors"))
model.eval()
transform = v2.Compose([
    v2.PILToTensor(), v2.Resize(256, antialias=True), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
files = sorted(folder.glob("*.jpg"))
with output.open("w") as stream, torch.inference_mode():
    writer = csv.writer(stream)
    for start in range(0, len(files), 32):
        part = files[start : start + 32]
        images = torch.stack([transform(Image.open(file).convert("RGB")) for file in part])
        for file, shares in zip(part, model(images).softmax(1)):
            writer.writerow([file.name, classes[shares.argmax()], *shares.tolist()])
"""


def make_images(folder: Path, num_images: int) -> None:
    """Write smooth random pictures, which are about as large as photographs when compressed."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(num_images):
        small = Image.fromarray(generator.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=90)


def train(place: Path) -> Path:
    """A model of the right size; what it knows does not matter."""
    data = ["data=synthetic", "data.num_classes=10", "data.num_train=16", "data.num_val=8", "data.image_size=224"]
    transforms = "[{name: resize, size: 224, crop_fraction: 0.875}, {name: center_crop, size: 224}]"
    overrides = [*data, f"data.eval_transforms={transforms}", "trainer.epochs=1", f"output_dir={place / 'outputs'}"]
    return runner.fit(runner.load_config(overrides)).run_dir


def seconds_of(command: list[str]) -> float:
    """Run a command to its end."""
    started = time.perf_counter()
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure in turns and record the medians."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    num_images = int(sys.argv[2]) if len(sys.argv) > 2 else NUM_IMAGES
    seconds: dict[str, list[float]] = {"plain loop (fp32)": [], "predict (fp32)": [], "predict (as by default)": []}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_images(place / "images", num_images)
        run_dir = train(place)
        for turn in range(repeats):
            plain = [sys.executable, "-c", PLAIN_LOOP, str(run_dir), str(place / "images"), str(place / f"p{turn}.csv")]
            seconds["plain loop (fp32)"].append(seconds_of(plain))
            for name, more in (("predict (fp32)", ["precision=fp32"]), ("predict (as by default)", [])):
                output = place / f"{turn}-{len(more)}.csv"
                ours = [sys.executable, "-m", "runner", "predict", f"run={run_dir}", f"input={place / 'images'}"]
                seconds[name].append(seconds_of([*ours, f"output={output}", *more]))
    medians = {name: statistics.median(values) * 1000 / num_images for name, values in seconds.items()}
    result = {
        "images": num_images,
        "repeats": repeats,
        "cores": os.cpu_count(),
        "load": load,
        "seconds_per_1000_images": {name: round(value, 2) for name, value in medians.items()},
        "ratio_to_the_plain_loop": {
            name: round(value / medians["plain loop (fp32)"], 3) for name, value in medians.items()
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
