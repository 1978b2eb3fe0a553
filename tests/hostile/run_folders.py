"""Families of run folders: saved configs, records, checkpoints, links."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tests.hostile import odd
from tests.hostile.place import Input, Place, Prepare

DOORS: dict[str, tuple[str, ...]] = {
    "resume": ("resume", "run=run", "trainer.epochs=2"),
    "evaluate": ("evaluate", "run=run", "output=out"),
    "predict": ("predict", "run=run", "input=photos", "output=scores.csv"),
    "export": ("export", "run=run", "format=torchscript", "output=model.pt"),
    "report": ("report", "run=run"),
    "list": ("runs", "list", "root=."),
    "diff": ("runs", "diff", "a=run", "b=other"),
    "repeat": ("runs", "repeat", "run=run"),
    "load_model": ("load_model", "run"),
}
_ALL = ("resume", "evaluate", "export", "report", "list", "diff", "repeat")
READ_BY: dict[str, tuple[str, ...]] = {
    "config.yaml": _ALL,
    "run.json": _ALL,
    "metrics.jsonl": ("resume", "report", "list", "diff"),
    "classes.json": ("resume", "evaluate", "export", "report"),
    "checkpoints/last": ("resume", "evaluate", "export"),
    "checkpoints/best": ("resume", "evaluate", "export", "report"),
    "CHECKPOINT/manifest.json": ("resume", "evaluate", "export"),
    "CHECKPOINT/state.json": ("resume", "evaluate", "report", "diff"),
    "CHECKPOINT/model.safetensors": ("resume", "evaluate", "export"),
    "CHECKPOINT/optimizer.safetensors": ("resume",),
    "model/model.json": ("predict", "load_model", "report", "evaluate"),
    "model/model.safetensors": ("predict", "load_model"),
    "evaluation/metrics.json": ("report", "diff", "list"),
    "evaluation/predictions.csv": ("report",),
    "environment.txt": ("report", "diff"),
    "source.patch": ("report", "repeat"),
    "logs/rank_0.log": ("resume", "report", "list"),
}
"""Which commands read what."""


def _checkpoint(folder: Path) -> str:
    return sorted(path.name for path in (folder / "checkpoints").glob("*-*"))[-1]


def received(*edits: Prepare) -> Prepare:
    """A run folder beside another one and a data set, with these edits; its manifests fit what it holds then."""

    def prepare(place: Place) -> None:
        for name in ("run", "photos"):
            place.copy(name)
        place.copy("run", "other")
        checkpoint = place.inside / "run/checkpoints" / _checkpoint(place.inside / "run")
        (place.inside / "CHECKPOINT").symlink_to(checkpoint)
        for edit in edits:
            edit(place)
        (place.inside / "CHECKPOINT").unlink()
        _seal(checkpoint)
        _seal_package(place.inside / "run/model")

    return prepare


def _seal(checkpoint: Path) -> None:
    """Whoever sends a folder can compute SHA-256 too; a manifest that was spoilt on purpose stays so."""
    manifest = checkpoint / "manifest.json"
    if manifest.is_symlink() or not manifest.is_file():
        return  # a FIFO or /dev/zero is for the command to stumble over, not for us
    try:
        entries = json.loads(manifest.read_text())
        for name in list(entries):
            content = (checkpoint / name).read_bytes() if (checkpoint / name).is_file() else b""
            if not (checkpoint / name).is_symlink():
                entries[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        is_manifest = all(isinstance(entry, dict) for entry in entries.values())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return
    if is_manifest:
        manifest.write_text(json.dumps(entries))


def _seal_package(folder: Path) -> None:
    card, weights = folder / "model.json", folder / "model.safetensors"
    if card.is_symlink() or not card.is_file() or weights.is_symlink() or not weights.is_file():
        return
    try:
        values = json.loads(card.read_text())
        if len(values["weights_sha256"]) == 64:
            values["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
            card.write_text(json.dumps(values))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return


def real(name: str) -> str:
    return name if name.startswith("CHECKPOINT") else f"run/{name}"


def _config(edit: Callable[[dict[str, Any]], object]) -> Prepare:
    def prepare(place: Place) -> None:
        file = place.inside / "run/config.yaml"
        values = yaml.safe_load(file.read_text())
        edit(values)
        place.write("run/config.yaml", yaml.safe_dump(values))

    return prepare


def _set(key: str, value: Any) -> Prepare:
    def edit(values: dict[str, Any]) -> None:
        *groups, last = key.split(".")
        for group in groups:
            values = values.setdefault(group, {})
        values[last] = value

    return _config(edit)


# Not among them: trainer.compile, whose compiler runs code of its own making, as foreign to the watch as any other.
_CONFIG_VALUES: tuple[tuple[str, Any], ...] = (
    ("hydra", {"callbacks": {"x": {"_target_": "os.system", "command": odd.SHELL}}}),
    ("hydra", {"run": {"dir": "@OUT@/made"}}),
    ("_target_", "os.system"),
    ("model._target_", "os.system"),
    ("nosuch", 1),
    ("dist.launcher", "submitted"),
    ("dist.slurm.setup", ["touch @OUT@/pwned"]),
    ("dist.slurm.job_name", "a\n#SBATCH --wrap=id\ntouch @OUT@/pwned"),
    ("dist.slurm.partition", "x\ntouch @OUT@/pwned"),
    ("dist.slurm.extra", {"wrap": "touch @OUT@/pwned", "a\nb": "c"}),
    ("dist.procs_per_node", 2),
    ("dist.procs_per_node", 10_000),
    ("dist.nodes", 2),
    ("dist.rendezvous", "127.0.0.1:9"),
    ("dist.rendezvous", "${oc.env:RUNNER_SECRET}.invalid:29500"),
    ("output_dir", "@OUT@/made"),
    ("output_dir", "~/zz"),
    ("output_dir", "../outside/made"),
    ("output_dir", "a\0b"),
    ("data.root", "@OUT@"),
    ("data.root", "/"),
    ("data.root", "/dev"),
    ("data.root", "/proc/self"),
    ("data.train", "/proc/self/fd"),
    ("data.train", "@OUT@/victim"),
    ("data.exclude", "@OUT@/secret.txt"),
    ("data.exclude", "/etc/shadow"),
    ("data.exclude", "/dev/zero"),
    ("data.workers", 64),
    ("data.workers", 1_000_000),
    ("data.batch_size", 10**9),
    ("data.image_size", 10**6),
    ("data.image_size", 3),
    ("data.cache", "memory"),
    ("data.max_pixels", 10**30),
    ("data.normalize", {"mean": [0.5], "std": [0.0]}),
    ("data.eval_transforms", [{"name": "resize", "size": 50_000}]),
    ("data.eval_transforms", [{"name": "os.system"}]),
    ("data.train_transforms", [{"name": "random_crop", "size": 8, "padding": 10**8}]),
    ("data", {"source": "torchvision", "name": "CIFAR10"}),
    ("data", {"source": "csv", "train": "@OUT@/secret.txt", "val": "@OUT@/secret.txt"}),
    ("data", {"source": "synthetic", "num_classes": 10**9, "num_train": 10**12, "num_val": 1}),
    ("model.name", "os.system"),
    ("model.name", "resnet152"),
    ("model.name", "../../evil"),
    ("model.family", "custom"),
    ("model.weights", "DEFAULT"),
    ("model.weights", "IMAGENET1K_V1"),
    ("model.weights", "http://127.0.0.1:9/x.pth"),
    ("model.weights", "@OUT@/secret.txt"),
    ("model.weights", "/dev/zero"),
    ("sweep.storage", "postgresql://user:hunter2@127.0.0.1:9/x"),
    ("sweep.storage", "sqlite:///@OUT@/made.db"),
    ("sweep.dir", "@OUT@/made"),
    ("trainer.epochs", 10**400),
    ("trainer.epochs", -1),
    ("trainer.max_steps", 0),
    ("trainer.monitor", "\x1b[2J"),
    ("trainer.keep", 10**9),
    ("trainer.grace_seconds", 0),
    ("trainer.checkpoint_every", 1),
    ("trainer.device", "cuda"),
    ("trainer.precision", "fp16"),
    ("optimizer.lr", "${oc.env:RUNNER_SECRET}"),
    ("seed", "${seed}"),
    ("seed", "${oc.env:RUNNER_SECRET}"),
    ("experiment", "../../evil"),
    ("model", []),
    ("data", None),
    ("optimizer", "adamw"),
)


def saved_table() -> Iterator[Input]:
    """Saved configs with other values, and what is no config at all."""
    for key, value in _CONFIG_VALUES:
        for door in READ_BY["config.yaml"]:
            yield Input(f"{door}: config.yaml {key} = {str(value)[:50]!r}", DOORS[door], received(_set(key, value)))
    for title, spoil in odd.spoilt("run/config.yaml").items():
        for door in READ_BY["config.yaml"]:
            yield Input(f"{door}: {title}", DOORS[door], received(spoil))


def saved_grown(rng: random.Random) -> Input:
    """A saved config with odd values at random keys."""
    door, seed = rng.choice(READ_BY["config.yaml"]), rng.random()

    def prepare(place: Place) -> None:
        file = place.inside / "run/config.yaml"
        _, values = odd.mutated(yaml.safe_load(file.read_text()), random.Random(seed))
        place.write("run/config.yaml", yaml.safe_dump(values))

    return Input(f"{door}: a mutated config.yaml", DOORS[door], received(prepare))


def _row(**values: Any) -> Prepare:
    def prepare(place: Place) -> None:
        file = place.inside / "run/metrics.jsonl"
        row = {**json.loads(file.read_text().splitlines()[0]), **values}
        place.write("run/metrics.jsonl", json.dumps(row) + "\n")

    return prepare


_POINTERS = ("../../../outside/victim/0001-00000001", "@OUT@/victim", "..", "", "a\0b", "9999-99999999", "\x1b[2J")
_CLASSES: tuple[Any, ...] = (
    *(["a"], [], ["a"] * 3, [1, 2, 3], ["../../x", "\x1b[2J", "=cmd()"], ["a", "b", "c", "d"], "abc", {"a": 1}),
    ["x" * 10**6] * 3,
)


def _odd_records() -> Iterator[tuple[str, str, Prepare]]:
    """Which file, what is odd about it, and how it becomes so."""
    for name in READ_BY:
        if name != "config.yaml" and not name.startswith("model/") and not name.endswith(".safetensors"):
            yield from ((name, title, spoil) for title, spoil in odd.spoilt(real(name)).items())
    for value, key in product((*odd.VALUES, "x\ny"), ("epoch", "step", "val_loss", "lr", "nosuch")):
        yield "metrics.jsonl", f"metrics.jsonl {key} = {str(value)[:30]!r}", _row(**{key: value})
    for name, text in product(("checkpoints/last", "checkpoints/best"), _POINTERS):
        yield name, f"{name} = {text!r}", _text(name, text)
    for classes in _CLASSES:
        yield "classes.json", f"classes.json = {str(classes)[:40]}", _text("classes.json", json.dumps(classes))


def records_table() -> Iterator[Input]:
    """Each file of a run folder, odd in each way, read by each command that reads it."""
    for name, title, spoil in _odd_records():
        yield from (Input(f"{door}: {title}", DOORS[door], received(spoil)) for door in READ_BY[name])


def _text(name: str, text: str) -> Prepare:
    return lambda place: place.write(real(name), text) and None


def records_grown(rng: random.Random) -> Input:
    """A JSON file of a run folder with odd values at random spots, or with noise."""
    names = [name for name in READ_BY if name.endswith((".json", ".jsonl")) and not name.startswith("model/")]
    name, seed = rng.choice(names), rng.random()
    door = rng.choice(READ_BY[name])

    def prepare(place: Place) -> None:
        own, file = random.Random(seed), place.inside / real(name)
        if own.random() < 0.2:
            place.write(real(name), odd.noisy(file.read_bytes(), own))
        else:
            rows = [
                odd.mutated(json.loads(line), own)[1]
                for line in (file.read_text().splitlines() if name.endswith("l") else [file.read_text()])
            ]
            place.write(real(name), "\n".join(map(json.dumps, rows)) + "\n")

    return Input(f"{door}: a mutated {name}", DOORS[door], received(prepare))


_PARTS = (
    *("config.yaml", "run.json", "metrics.jsonl", "classes.json", "checkpoints", "checkpoints/last", "CHECKPOINT"),
    *("CHECKPOINT/state.json", "CHECKPOINT/model.safetensors", "model", "model/model.json", "model/model.safetensors"),
    *("logs", "logs/rank_0.log", "logs/launcher.log", "evaluation", "evaluation/metrics.json", "tensorboard", "export"),
    *("report.html", "environment.txt", "source.patch", "."),
)


def links_table() -> Iterator[Input]:
    """Each part of a run folder replaced by a link out of it; what is written there, or removed, is the effect."""
    for part in _PARTS:
        for target in ("@OUT@/victim", "@OUT@/secret.txt", "@OUT@/nosuch", "@OUT@", "/dev/zero"):
            for door, argv in DOORS.items():
                yield Input(f"{door}: {part} → {target}", argv, received(_moved(part, target)))


def _moved(part: str, target: str) -> Prepare:
    def prepare(place: Place) -> None:
        if part == ".":
            place.link("run/nested", target)
        elif part == "CHECKPOINT":
            name = _checkpoint(place.inside / "run")
            place.link(f"run/checkpoints/{name}", target)
        else:
            place.link(real(part), target)

    return prepare


def links_grown(rng: random.Random) -> Input:
    """Two links at once."""
    first, second = rng.sample(_PARTS, 2)
    door = rng.choice(tuple(DOORS))
    edits = (_moved(first, rng.choice(("@OUT@/victim", "../outside/victim"))), _moved(second, "@OUT@/victim"))
    in_order = sorted(edits, key=lambda _: rng.random())

    def prepare(place: Place) -> None:
        for edit in in_order:
            try:
                edit(place)
            except OSError:  # the first link has taken the place of what the second is in
                continue

    return Input(f"{door}: {first} and {second} are links", DOORS[door], received(prepare))
