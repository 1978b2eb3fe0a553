"""Passwords within addresses, `scheme://user:password@host`, are used, but neither saved nor shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
# RFC 3986, 3.2.1: what stands before the @ of an authority; the password is all of it after the first colon.
# Read from the :// on: a pattern that begins with any length of a scheme takes quadratic time over a long word.
_USERINFO = re.compile(r"(?<=[A-Za-z0-9+.-])://[^\s/?#'\"@]+@")


def masked(text: str) -> str:
    """A text without the user information of the addresses in it."""
    return _USERINFO.sub(f"://{MASK}@", text)


def masked_values(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The same of all texts in nested plain values."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_values(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(child) for child in value]
    return value
