"""Family of weights: files of other programs that an experiment names."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile import odd
from tests.hostile.command_lines import SMALL
from tests.hostile.packages import SAFETENSORS
from tests.hostile.place import Input, Place, put


class _Runs:
    """What unpickling would call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made_of = function, arguments

    def __reduce__(self) -> Any:
        return self.made_of


def _pickled() -> dict[str, Any]:
    import collections
    import os
    import subprocess

    import torch

    ring: dict[str, Any] = {}
    ring["state_dict"] = ring
    deep: Any = {}
    for _ in range(5_000):
        deep = {"state_dict": deep}
    return {
        "os.system": _Runs(os.system, "touch @OUT@/pwned"),
        "in a state dict": {"a": _Runs(os.system, "touch @OUT@/pwned")},
        "subprocess": {"state_dict": _Runs(subprocess.Popen, ["touch", "@OUT@/pwned"])},
        "eval": {"model": _Runs(eval, "1+1")},
        "open": _Runs(open, "@OUT@/made", "w"),
        "torch.load": _Runs(torch.load, "@OUT@/secret.txt"),
        "holds itself": ring,
        "deep": deep,
        "a tensor": torch.zeros(3),
        "a list": [torch.zeros(3)],
        "odd names": {"\x1b[2J": torch.zeros(1), "a\0b": torch.zeros(1), "": torch.zeros(1)},
        "names that are numbers": {1: torch.zeros(1), None: torch.zeros(1)},
        "no tensors": {"state_dict": {"a": 1, "b": "x"}},
        "a module": torch.nn.Linear(1, 1),
        "sparse": {"conv1.0.weight": torch.zeros(2, 2).to_sparse()},
        "complex": {"conv1.0.weight": torch.zeros(24, 3, 3, 3, dtype=torch.complex64)},
        "meta": {"conv1.0.weight": torch.zeros(24, 3, 3, 3, device="meta")},
        "expanded": {"conv1.0.weight": torch.zeros(1).expand(1 << 40)},
        "quantized": {"conv1.0.weight": torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)},
        "nan": {"conv1.0.weight": torch.full((24, 3, 3, 3), float("nan"))},
        "ordered": collections.OrderedDict(a=torch.zeros(1)),
        "many names": {f"k{number}": 0 for number in range(20_000)},
        "null": None,
    }


_PICKLES = (
    *("os.system", "in a state dict", "subprocess", "eval", "open", "torch.load", "holds itself", "deep", "a tensor"),
    *("a list", "odd names", "names that are numbers", "no tensors", "a module", "sparse", "complex", "meta"),
    *("expanded", "quantized", "nan", "ordered", "many names", "null"),
)
_LAYOUTS = ("zip", "legacy", "bare")


def _saved(title: str, layout: str) -> Callable[[Place], bytes]:
    def make(place: Place) -> bytes:
        import pickle
        import sys

        import torch

        sys.setrecursionlimit(100_000)
        value = _pickled()[title]
        if isinstance(value, _Runs):
            value.made_of = (
                value.made_of[0],
                tuple(place.filled(item) if isinstance(item, str) else item for item in value.made_of[1]),
            )
        buffer = io.BytesIO()
        if layout == "bare":
            pickle.dump(value, buffer)
        else:
            torch.save(value, buffer, _use_new_zipfile_serialization=layout == "zip")
        sys.setrecursionlimit(1000)
        return buffer.getvalue()

    return make


_WEIGHT_DOORS = ((("validate", *SMALL), ()), (SMALL, ()), (("load_config", *SMALL), ()))


def table() -> Iterator[Input]:
    """Weights that an experiment names."""
    for suffix in ("pt", "pth", "safetensors"):
        for title, content in {**odd.TEXTS, "short zip": b"PK\x03\x04" + bytes(50)}.items():
            yield Input(
                f"w.{suffix}: {title}", ("validate", *SMALL, f"model.weights=w.{suffix}"), put(f"w.{suffix}", content)
            )
        for title, spoil in odd.spoilt(f"w.{suffix}").items():
            if title.endswith(("FIFO", "zero", "secret", "itself", "folder", "gone")):
                yield Input(title, ("validate", *SMALL, f"model.weights=w.{suffix}"), spoil)
    for title in _PICKLES:
        for layout in _LAYOUTS:
            for suffix in ("pt", "safetensors"):
                make, name = _saved(title, layout), f"w.{suffix}"
                yield Input(
                    f"{name}: {layout}, {title}", ("validate", *SMALL, f"model.weights={name}"), put(name, make)
                )
    for title, content in SAFETENSORS.items():
        yield Input(
            f"w.safetensors: {title}",
            ("validate", *SMALL, "model.weights=w.safetensors"),
            put("w.safetensors", content),
        )


def grown(rng: random.Random) -> Input:
    """Noise in weights that would be fine."""
    title, layout, seed = rng.choice(_PICKLES), rng.choice(_LAYOUTS), rng.random()

    def make(place: Place) -> bytes:
        return odd.noisy(_saved(title, layout)(place), random.Random(seed))

    return Input(f"noisy {layout}, {title}", ("validate", *SMALL, "model.weights=w.pt"), put("w.pt", make))
