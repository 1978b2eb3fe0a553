"""Families of what a finished run leaves and others send: configs, records, checkpoints, packages, sweeps, links."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
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
    """A run folder beside another one and a data set, with these edits; its checkpoint's manifest fits what it holds."""

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
    try:
        entries = json.loads(manifest.read_text())
        for name in list(entries):
            content = (checkpoint / name).read_bytes() if (checkpoint / name).is_file() else b""
            if not (checkpoint / name).is_symlink():
                entries[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return
    if not manifest.is_symlink() and all(isinstance(entry, dict) for entry in entries.values()):
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


def _real(name: str) -> str:
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
    ("sweep.storage", "postgresql://user:CANARY-5e1f@127.0.0.1:9/x"),
    ("sweep.storage", "sqlite:///@OUT@/made.db"),
    ("sweep.dir", "@OUT@/made"),
    ("trainer.epochs", 10**400),
    ("trainer.epochs", -1),
    ("trainer.max_steps", 0),
    ("trainer.compile", True),
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


def records_table() -> Iterator[Input]:
    """Each file of a run folder, spoilt in each way, read by each command that reads it."""
    for name, doors in READ_BY.items():
        if name == "config.yaml" or name.startswith("model/") or name.endswith(".safetensors"):
            continue
        for title, spoil in odd.spoilt(_real(name)).items():
            for door in doors:
                yield Input(f"{door}: {title}", DOORS[door], received(spoil))
    for value in (*odd.VALUES, "x\ny"):
        for key in ("epoch", "step", "val_loss", "lr", "nosuch"):
            for door in READ_BY["metrics.jsonl"]:
                yield Input(
                    f"{door}: metrics.jsonl {key} = {str(value)[:30]!r}", DOORS[door], received(_row(**{key: value}))
                )
    for pointer in ("last", "best"):
        for text in (
            "../../../outside/victim/0001-00000001",
            "@OUT@/victim",
            "..",
            "",
            "a\0b",
            "9999-99999999",
            "\x1b[2J",
        ):
            for door in ("resume", "evaluate", "export"):
                yield Input(
                    f"{door}: checkpoints/{pointer} = {text!r}",
                    DOORS[door],
                    received(_text(f"checkpoints/{pointer}", text)),
                )
    for classes in (
        ["a"],
        [],
        ["a"] * 3,
        [1, 2, 3],
        ["../../x", "\x1b[2J", "=cmd()"],
        ["a", "b", "c", "d"],
        "abc",
        {"a": 1},
        ["x" * 10**6] * 3,
    ):
        for door in READ_BY["classes.json"]:
            yield Input(
                f"{door}: classes.json = {str(classes)[:40]}",
                DOORS[door],
                received(_text("classes.json", json.dumps(classes))),
            )


def _text(name: str, text: str) -> Prepare:
    return lambda place: place.write(_real(name), text) and None


def records_grown(rng: random.Random) -> Input:
    """A JSON file of a run folder with odd values at random spots, or with noise."""
    names = [name for name in READ_BY if name.endswith((".json", ".jsonl")) and not name.startswith("model/")]
    name, seed = rng.choice(names), rng.random()
    door = rng.choice(READ_BY[name])

    def prepare(place: Place) -> None:
        own, file = random.Random(seed), place.inside / _real(name)
        if own.random() < 0.2:
            place.write(_real(name), odd.noisy(file.read_bytes(), own))
        else:
            rows = [
                odd.mutated(json.loads(line), own)[1]
                for line in (file.read_text().splitlines() if name.endswith("l") else [file.read_text()])
            ]
            place.write(_real(name), "\n".join(map(json.dumps, rows)) + "\n")

    return Input(f"{door}: a mutated {name}", DOORS[door], received(prepare))


def _header(header: Any, rest: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


_SAFETENSORS: dict[str, bytes] = {
    "empty": b"",
    "a huge header": struct.pack("<Q", 2**63) + b"{}",
    "a header beyond the end": _header({}, length=1 << 40),
    "a header of 100 MB": struct.pack("<Q", 100_000_000) + b"{}",
    "no JSON": _header(b"not json"),
    "deep JSON": _header(b"[" * odd.DEEP),
    "overlapping": _header(
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
        bytes(12),
    ),
    "a shape that overflows": _header({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
    "a shape of zero": _header({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
    "an unknown type": _header({"a": {"dtype": "X99", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "negative offsets": _header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, bytes(4)),
    "odd names": _header({"\x1b[2J": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "metadata": _header({"__metadata__": {"a": "x" * 10**6}}),
    "no tensors": _header({}),
    "a pickle": b"\x80\x04cposix\nsystem\n(S'touch /tmp/runner-hostile-pwned'\ntR.",
}


def _weights(change: str) -> Prepare:
    """Weights of the right names with wrong values."""

    def prepare(place: Place) -> None:
        import safetensors.torch
        import torch

        for file in ("run/model/model.safetensors", "CHECKPOINT/model.safetensors"):
            tensors = safetensors.torch.load_file(place.inside / file)
            name = sorted(tensors)[-1]
            match change:
                case "nan" | "inf":
                    tensors = {
                        key: torch.full_like(value, float(change)) if value.is_floating_point() else value
                        for key, value in tensors.items()
                    }
                case "one nan":
                    tensors[name] = torch.full_like(tensors[name], float("nan"))
                case "another type":
                    tensors = {key: value.to(torch.float64) for key, value in tensors.items()}
                case "another shape":
                    tensors[name] = torch.zeros(7, 7)
                case "fewer":
                    del tensors[name]
                case "more":
                    tensors["x\x1b[2J"] = torch.zeros(1)
                case "int8":
                    tensors = {key: value.to(torch.int8) for key, value in tensors.items()}
                case "huge":
                    tensors[name] = torch.full_like(tensors[name], 3e38)
            place.remove(file)
            safetensors.torch.save_file(tensors, place.inside / file)

    return prepare


_CARD: tuple[tuple[str, Any], ...] = (
    ("format", 99),
    ("format", "2"),
    ("num_classes", 2),
    ("num_classes", 10**12),
    ("num_classes", 0),
    ("classes", ["a", "b"]),
    ("classes", ["\x1b[2J", "=cmd()", "../x"]),
    ("classes", ["a", "a", "a"]),
    ("classes", []),
    ("weights_sha256", ""),
    ("weights_sha256", 7),
    ("weights_kind", "other"),
    ("architecture", {"family": "custom", "name": "os:system", "arguments": {"command": "x"}}),
    ("architecture", {"family": "torchvision", "name": "resnet152"}),
    ("architecture", {"family": "torchvision", "name": "get_model"}),
    ("architecture", {"family": "torchvision", "name": "__import__"}),
    ("architecture", {"_target_": "os.system"}),
    ("architecture", None),
    (
        "preprocessing",
        {"image_size": 10**9, "transforms": [], "normalize": {"mean": [0.5, 0.5, 0.5], "std": [1, 1, 1]}},
    ),
    (
        "preprocessing",
        {
            "image_size": 32,
            "transforms": [{"name": "resize", "size": 200_000}],
            "normalize": {"mean": [0.5, 0.5, 0.5], "std": [1, 1, 1]},
        },
    ),
    (
        "preprocessing",
        {"image_size": 32, "transforms": [{"_target_": "os.system"}], "normalize": {"mean": [0], "std": [0]}},
    ),
    ("preprocessing", {"image_size": 32, "transforms": [], "normalize": {"mean": [0.5, 0.5, 0.5], "std": [0, 0, 0]}}),
    ("best", {"metric": "\x1b[2J", "value": 10**400}),
    ("metrics", {"val": {"top1": "x" * 10**6}}),
    ("origin", {"run": "@OUT@/made", "data": {"a": "${oc.env:RUNNER_SECRET}"}}),
)


def packages_table() -> Iterator[Input]:
    """The packaged model, and the weights of checkpoints."""
    doors = ("predict", "load_model", "evaluate", "export", "resume")
    for title, spoil in odd.spoilt("run/model/model.json").items():
        for door in READ_BY["model/model.json"]:
            yield Input(f"{door}: {title}", DOORS[door], received(spoil))
    for key, value in _CARD:
        card = odd.edited_json("run/model/model.json", lambda values, key=key, value=value: {**values, key: value})
        for door in ("predict", "load_model", "report"):
            yield Input(f"{door}: model.json {key} = {str(value)[:50]}", DOORS[door], received(card))
    for title, content in _SAFETENSORS.items():
        for name in ("model/model.safetensors", "CHECKPOINT/model.safetensors", "CHECKPOINT/optimizer.safetensors"):
            for door in READ_BY[name]:
                spoil = lambda place, name=name, content=content: place.write(_real(name), content) and None  # noqa: E731
                yield Input(f"{door}: {name}: {title}", DOORS[door], received(spoil))
    for change in ("nan", "inf", "one nan", "another type", "another shape", "fewer", "more", "int8", "huge"):
        for door in doors:
            yield Input(f"{door}: weights with {change}", DOORS[door], received(_weights(change)))


def packages_grown(rng: random.Random) -> Input:
    """Noise in weights, odd values in model.json."""
    seed = rng.random()
    if rng.random() < 0.5:
        door = rng.choice(("predict", "load_model", "report"))
        card = odd.edited_json("run/model/model.json", lambda values: odd.mutated(values, random.Random(seed))[1])
        return Input(f"{door}: a mutated model.json", DOORS[door], received(card))
    door = rng.choice(("predict", "load_model", "evaluate", "resume"))
    name = "run/model/model.safetensors" if door in ("predict", "load_model") else "CHECKPOINT/model.safetensors"

    def prepare(place: Place) -> None:
        content = (place.inside / name).read_bytes()
        place.write(name, odd.noisy(content[:3000], random.Random(seed)) + content[3000:])

    return Input(f"{door}: a noisy {name}", DOORS[door], received(prepare))


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
            for door in DOORS:
                yield Input(f"{door}: {part} → {target}", DOORS[door], received(_moved(part, target)))


def _moved(part: str, target: str) -> Prepare:
    def prepare(place: Place) -> None:
        if part == ".":
            place.link("run/nested", target)
        elif part == "CHECKPOINT":
            name = _checkpoint(place.inside / "run")
            place.link(f"run/checkpoints/{name}", target)
        else:
            place.link(_real(part), target)

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


_ARGV: tuple[list[Any], ...] = (
    ["-m", "--experimental-rerun", "evil.pickle"],
    ["-m", "hydra.callbacks.x={_target_:os.system,command:'touch @OUT@/pwned'}"],
    ["-m", "+hydra.callbacks.x={_target_:torch.utils.collect_env.run,command:'touch @OUT@/pwned'}"],
    ["-m", "hydra.run={dir:@OUT@/made}"],
    ["-m", "hydra/launcher=basic", "hydra.launcher._target_=os.system"],
    ["-m", "hydra/job_logging=default"],
    ["-m", "--config-dir", "@OUT@"],
    ["-m", "--config-path", "@OUT@"],
    ["-m", "--config-name", "../../evil"],
    ["-m", "experiment=../../evil"],
    ["-m", "output_dir=@OUT@/made"],
    ["-m", "hydra.sweep.subdir=../../../outside/made"],
    ["-m", "dist=slurm", "dist.slurm.setup=['touch @OUT@/pwned']"],
    ["-m", "hydra/launcher=submitit_slurm"],
    ["-m", "hydra/launcher=submitit_local"],
    ["-m", "hydra/launcher=joblib"],
    ["-m", "sweep.storage=postgresql://u:p@127.0.0.1:9/x"],
    ["-m", "sweep.storage=sqlite:///@OUT@/made.db"],
    ["--cfg", "all"],
    ["--info"],
    ["--hydra-help"],
    ["-sc", "install=bash"],
    ["predict", "run=x"],
    ["train"],
    [],
    [1, 2],
    ["-m", None],
    ["-m", "a\0b=1"],
    ["-m", "\x1b[2J=1"],
    ["-m", "seed=range(0,100000000)"],
    ["-m", "seed=${oc.env:RUNNER_SECRET}"],
    ["-m", "model=../../evil"],
)


def _sweep(*edits: Prepare) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("sweep")
        place.write("evil.pickle", odd.TEXTS["pickle"])
        for edit in edits:
            edit(place)

    return prepare


_SWEEP_DOORS = (("resume", "run=sweep"), ("report", "run=sweep"), ("runs", "list", "root=."))


def sweeps_table() -> Iterator[Input]:
    """Sweep folders of others."""
    for argv in _ARGV:
        edit = odd.edited_json("sweep/sweep.json", lambda values, argv=argv: {**values, "argv": argv})
        yield Input(f"resume: sweep.json argv = {str(argv)[:80]}", _SWEEP_DOORS[0], _sweep(edit))
    for key in ("argv", "cwd", "format", "metrics", "directions", "start"):
        for value in odd.VALUES:
            edit = odd.edited_json("sweep/sweep.json", lambda values, key=key, value=value: {**values, key: value})
            for door in _SWEEP_DOORS[:2]:
                yield Input(f"{door[0]}: sweep.json {key} = {str(value)[:40]!r}", door, _sweep(edit))
    for file in (
        "sweep.json",
        "trials/0.json",
        "multirun.yaml",
        "leaderboard.json",
        "leaderboard.csv",
        "best.yaml",
        "journal.log",
        "0/run.json",
        "0/config.yaml",
    ):
        for title, spoil in odd.spoilt(f"sweep/{file}").items():
            for door in _SWEEP_DOORS:
                made = (
                    (lambda place, file=file: place.write(f"sweep/{file}", "x") and None,) if "cut off" in title else ()
                )
                yield Input(f"{door[0]}: {title}", door, _sweep(*made, spoil))
    for part in (
        "trials",
        "0",
        "logs",
        ".lock",
        ".leaderboard.lock",
        "leaderboard.csv",
        "journal.log",
        "report.html",
        "multirun.yaml",
    ):
        for target in ("@OUT@/victim", "@OUT@/secret.txt", "@OUT@/nosuch"):
            for door in _SWEEP_DOORS:
                edit = lambda place, part=part, target=target: place.link(f"sweep/{part}", target)  # noqa: E731
                yield Input(f"{door[0]}: sweep/{part} → {target}", door, _sweep(edit))


def sweeps_grown(rng: random.Random) -> Input:
    """Odd values at random spots of a sweep's JSON."""
    file, seed, door = rng.choice(("sweep.json", "trials/0.json", "0/run.json")), rng.random(), rng.choice(_SWEEP_DOORS)
    edit = odd.edited_json(f"sweep/{file}", lambda values: odd.mutated(values, random.Random(seed))[1])
    return Input(f"{door[0]}: a mutated {file}", door, _sweep(edit))
