"""What makes two trials the same: a hash of all that decides about the result."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from runner.config.schema import Config

# Where things are written and how the work is spread decides about no result; how many processes there are does.
_WITHOUT_EFFECT = (
    "output_dir",
    "sweep",
    "data.workers",
    "data.download",
    "data.fingerprint",
    "trainer.print_every",
    "trainer.checkpoint_every",
    "trainer.checkpoint_minutes",
    "trainer.keep",
    "dist.launcher",
    "dist.backend",
    "dist.rendezvous",
    "dist.node_rank",
    "dist.max_restarts",
    "dist.timeout_seconds",
    "dist.rendezvous_timeout_seconds",
    "dist.stall_timeout_seconds",
    "dist.slurm",
)


def identity_of(config: Config, varied: Iterable[str] = ()) -> str:
    """SHA-256, in hexadecimal, of a config without what has no effect on the result.

    Args:
        config: complete and checked.
        varied: keys that the sweep varies; they count whatever they are, since somebody wants to compare them.
    """
    values = what_counts(config.model_dump(mode="json"), varied)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def what_counts(config: Mapping[str, Any], varied: Iterable[str] = ()) -> dict[str, Any]:
    """The values of a config that count for :func:`identity_of`."""
    values = copy.deepcopy(dict(config))
    kept = set(varied)
    for key in _WITHOUT_EFFECT:
        if not any(name == key or name.startswith(f"{key}.") for name in kept):
            _forget(values, key)
    return values


def _forget(values: dict[str, Any], key: str) -> None:
    *parents, last = key.split(".")
    for name in parents:
        values = values[name]
    values.pop(last, None)
