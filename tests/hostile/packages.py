"""Family of packages: model.json, and weights in safetensors, of a package or a checkpoint."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

from tests.hostile import odd
from tests.hostile.place import Input, Place, Prepare
from tests.hostile.run_folders import DOORS, READ_BY, real, received


def _header(header: Any, rest: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


SAFETENSORS: dict[str, bytes] = {
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

        for file in ("run/model/model.safetensors", "CHECKPOINT/model.safetensors"):
            tensors = _changed(safetensors.torch.load_file(place.inside / file), change)
            place.remove(file)
            safetensors.torch.save_file(tensors, place.inside / file)

    return prepare


def _changed(tensors: dict[str, Any], change: str) -> dict[str, Any]:
    import torch

    name = sorted(tensors)[-1]
    last = tensors[name]
    others = {key: value for key, value in tensors.items() if key != name}
    changed = {
        "one nan": {**others, name: torch.full_like(last, float("nan"))},
        "huge": {**others, name: torch.full_like(last, 3e38)},
        "another shape": {**others, name: torch.zeros(7, 7)},
        "fewer": others,
        "more": {**tensors, "x\x1b[2J": torch.zeros(1)},
    }
    if change in changed:
        return changed[change]
    if change in ("nan", "inf"):
        value = float(change)
        return {key: torch.full_like(own, value) if own.is_floating_point() else own for key, own in tensors.items()}
    return {key: own.to(getattr(torch, change)) for key, own in tensors.items()}


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
    (
        "preprocessing",
        {"channels": 4, "image_size": 32, "transforms": [], "normalize": {"mean": [0.5] * 3, "std": [1] * 3}},
    ),
    (
        "preprocessing",
        {"channels": 10**9, "image_size": 32, "transforms": [], "normalize": {"mean": [], "std": []}},
    ),
    (
        "preprocessing",
        {
            "bit_depth": 10**9,
            "resize": "\x1b[2J",
            "fill": -1,
            "image_size": [10**9, 1],
            "transforms": [],
            "normalize": {"mean": [0.5] * 10**5, "std": [1] * 10**5},
        },
    ),
    ("best", {"metric": "\x1b[2J", "value": 10**400}),
    ("metrics", {"val": {"top1": "x" * 10**6}}),
    ("origin", {"run": "@OUT@/made", "data": {"a": "${oc.env:RUNNER_SECRET}"}}),
)


def table() -> Iterator[Input]:
    """The packaged model, and the weights of checkpoints."""
    doors = ("predict", "load_model", "evaluate", "export", "resume")
    for title, spoil in odd.spoilt("run/model/model.json").items():
        for door in READ_BY["model/model.json"]:
            yield Input(f"{door}: {title}", DOORS[door], received(spoil))
    for key, value in _CARD:
        card = odd.edited_json("run/model/model.json", lambda values, key=key, value=value: {**values, key: value})
        for door in ("predict", "load_model", "report"):
            yield Input(f"{door}: model.json {key} = {str(value)[:50]}", DOORS[door], received(card))
    for title, content in SAFETENSORS.items():
        for name in ("model/model.safetensors", "CHECKPOINT/model.safetensors", "CHECKPOINT/optimizer.safetensors"):
            for door in READ_BY[name]:
                spoil = lambda place, name=name, content=content: place.write(real(name), content) and None  # noqa: E731
                yield Input(f"{door}: {name}: {title}", DOORS[door], received(spoil))
    for change in ("nan", "inf", "one nan", "float64", "another shape", "fewer", "more", "int8", "huge"):
        for door in doors:
            yield Input(f"{door}: weights with {change}", DOORS[door], received(_weights(change)))


def grown(rng: random.Random) -> Input:
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
