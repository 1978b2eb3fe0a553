"""Ten experiments as digests, to hold a change of the code against: `python benchmarks/same_bits.py --write FILE`.

On another tree, `python benchmarks/same_bits.py --compare FILE` trains them again and exits with 1 where a digest is
another. `--code FOLDER` runs the runner of that folder, so that one script measures both trees. Digests are those of
one machine and one version of PyTorch: write them anew on another. Each experiment is trained in fp32, evaluated and
used for predictions; digested are the packaged weights, the reproducible values of metrics.jsonl (those whose keys
don't say `second`), evaluation/metrics.json and the rows of the predictions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("model=torchvision", "model.name=shufflenet_v2_x0_5", "optimizer.lr=0.002")
PHOTOS = ("data=folder", "data.root=photos", "data.image_size=64", "data.batch_size=8")
AUGMENTED = (
    "data.train_transforms=[{name: random_resized_crop, size: 64}, {name: random_horizontal_flip}, "
    "{name: trivial_augment}, {name: random_erasing}]"
)
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "default": ("trainer.max_steps=30",),
    "densenet121": ("model=densenet121", *PHOTOS, "optimizer.lr=0.002"),
    "augmented": (*SMALL, *PHOTOS, AUGMENTED, "data.workers=2"),
    "ema and mixup": (*SMALL, *PHOTOS, "trainer.ema_decay=0.8", "trainer.mixup_alpha=0.2", "trainer.cutmix_alpha=1.0"),
    "accumulation": (*SMALL, *PHOTOS, "trainer.accumulate_steps=2", "optimizer=adamw", "trainer.clip_norm=1.0"),
    "class weights": (*SMALL, *PHOTOS, "data.balance=loss_weights", "schedule=cosine", "trainer.label_smoothing=0.1"),
    "two processes": (*SMALL, *PHOTOS, "dist.procs_per_node=2", "dist.backend=gloo", "data.workers=0"),
    "killed and resumed": (*SMALL, *PHOTOS, "trainer.checkpoint_every=2", "trainer.ema_decay=0.8"),
    "sampler, frozen": (*SMALL, *PHOTOS, "data.balance=sampler", "trainer.freeze_backbone_epochs=1"),
    "sweep": (*SMALL, *PHOTOS, "-m", "seed=1,2", "schedule=step,poly", "sweep.dir=sweep", "sweep.parallel=1"),
}
_COMMON = ("trainer.precision=fp32", "trainer.device=cpu", "trainer.epochs=3", "schedule.warmup_epochs=1")


def main() -> int:
    """Train them all, and write or compare their digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, default=ROOT, help="whose runner is run")
    parser.add_argument("--only", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE")
    action.add_argument("--compare", type=Path, metavar="FILE")
    called = parser.parse_args()
    expected = json.loads(called.compare.read_text()) if called.compare else {}
    found: dict[str, dict[str, str]] = {}
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        for name in called.only:
            place = Path(folder) / name.replace(" ", "_")
            place.mkdir()
            _make_photos(place / "photos")
            found[name] = _digests(name, called.code.resolve(), place)
            other = [key for key, digest in expected.get(name, found[name]).items() if found[name].get(key) != digest]
            differ |= bool(other)
            print(f"{name}: {'other bits in ' + ', '.join(other) if other else 'the same' if expected else 'written'}")
    if called.write:
        called.write.write_text(json.dumps(found, indent=1) + "\n")
    return int(differ)


def _digests(name: str, code: Path, place: Path) -> dict[str, str]:
    argv = [*EXPERIMENTS[name], *_COMMON]
    if name == "killed and resumed":
        _kill_in_second_epoch(code, place, argv)
        _run(code, place, ["resume", f"run={next(place.glob('outputs/*/*/run.json')).parent}"])
    else:
        _run(code, place, argv)
    found = {}
    for number, record in enumerate(sorted([*place.glob("outputs/*/*/run.json"), *place.glob("sweep/*/run.json")])):
        run = record.parent
        _run(code, place, ["evaluate", f"run={run}", f"output={place / f'evaluated_{number}'}"])
        predictions = place / f"predicted_{number}.csv"
        _run(code, place, ["predict", f"run={run}", f"input={place / 'photos' / 'val'}", f"output={predictions}"])
        found[f"{number}: weights"] = _sha256((run / "model" / "model.safetensors").read_bytes())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found[f"{number}: metrics"] = _sha256(json.dumps(_reproducible(rows)).encode())
        measured = json.loads((place / f"evaluated_{number}" / "metrics.json").read_text())
        found[f"{number}: evaluation"] = _sha256(json.dumps(_reproducible(measured), sort_keys=True).encode())
        found[f"{number}: predictions"] = _sha256(predictions.read_bytes())
    return found


def _reproducible(values: Any) -> Any:  # noqa: ANN401 - nested plain values
    """Without what depends on the clock or on where the run lies."""
    if isinstance(values, dict):
        kept = {key: value for key, value in values.items() if "second" not in key}
        return {key: _reproducible(value) for key, value in kept.items()}
    if isinstance(values, list):
        return [_reproducible(value) for value in values]
    return "path" if isinstance(values, str) and "/" in values else values


def _kill_in_second_epoch(code: Path, place: Path, argv: list[str]) -> None:
    process = subprocess.Popen(
        _command(argv),
        cwd=place,
        env=_environment(code),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not any(_has_rows(file) for file in place.glob("outputs/*/*/metrics.jsonl")):
        if process.poll() is not None:
            raise RuntimeError("the run ended before it could be killed")
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_rows(file: Path) -> bool:
    return bool(file.read_text())


def _run(code: Path, place: Path, argv: list[str]) -> None:
    done = subprocess.run(
        _command(argv), cwd=place, env=_environment(code), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-3000:]}")


def _command(argv: list[str]) -> list[str]:
    return [sys.executable, "-m", "runner", *argv]


def _environment(code: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "2"}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _make_photos(root: Path) -> None:
    """Image files of three classes of different sizes, told apart by their colour."""
    generator = np.random.default_rng(0)
    for label, name in enumerate(("red", "green", "blue")):
        for split, count in (("train", 24 + 8 * label), ("val", 20)):
            for path in _files(root / split / name, count):
                pixels = generator.integers(0, 200, (90, 120, 3), dtype=np.uint8)
                pixels[..., label] += 55
                Image.fromarray(pixels).save(path, quality=90)


def _files(folder: Path, count: int) -> Iterator[Path]:
    folder.mkdir(parents=True)
    yield from (folder / f"{number}.jpg" for number in range(count))


if __name__ == "__main__":
    sys.exit(main())
