"""What makes two trials the same: a hash of all that decides about the result."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from runner.config.schema import Config
from runner.config.schema.base import effects


def identity_of(config: Config, varied: Iterable[str] = ()) -> str:
    """SHA-256, in hexadecimal, of a config without what has no effect on the result.

    Args:
        config: complete and checked.
        varied: keys that the sweep varies; they count whatever they are, since somebody wants to compare them.
    """
    return identity_of_values(config.model_dump(mode="json"), varied)


def identity_of_values(config: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """The same of a config as plain values."""
    values = what_counts(config, varied)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def what_counts(config: Mapping[str, Any], varied: Iterable[str] = ()) -> dict[str, Any]:
    """The values of a config that count for :func:`identity_of`."""
    values, kept = copy.deepcopy(dict(config)), set(varied)
    for key, effect in effects().items():
        is_varied = any(name == key or name.startswith(f"{key}.") for name in kept)
        if not effect.tells_trials_apart and not is_varied:
            _forget(values, key)
    return values


def _forget(values: dict[str, Any], key: str) -> None:
    *parents, last = key.split(".")
    for name in parents:
        values = values.get(name, {})
    values.pop(last, None)
