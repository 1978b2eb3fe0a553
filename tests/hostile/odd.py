"""Odd values, and ways to spoil a file: what the families are made of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.hostile.place import Place, Prepare

SHELL = "touch @OUT@/pwned"
DEEP = 50_000
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 10**30, 1e308, float("nan"), float("inf"), -(2**63), 10**400),
    *("", " ", "\0", "a\0b", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "\ud800", "x" * 100_000, "a\nb: c\n"),
    *("../../../../etc/passwd", "@OUT@/victim", "~nosuchuser/x", "~/zz", "/dev/zero", "/proc/self/mem", "file:///etc"),
    *("${oc.env:RUNNER_SECRET}", "${now:}", "${seed}", "${a.b}", "${", "???", "nan", "1_000", "0x10", "-0", "null"),
    *("$(touch @OUT@/pwned)", "`touch @OUT@/pwned`", "; touch @OUT@/pwned", "\n#SBATCH --wrap=id\ntouch @OUT@/pwned"),
    *(
        "=cmd|' /C calc'!A0",
        "<script>alert(1)</script>",
        "{{7*7}}",
        "%s%n%d",
        "http://127.0.0.1:9/x",
        "\\\\host\\share",
    ),
    *([], {}, [[]], [None], {"": None}, {"_target_": "os.system", "command": SHELL}, {"a": {"b": {"c": 1}}}),
    *([1] * 1000, {"__class__": "x"}, ["a", 1, None, {}]),
)
"""In place of a value of JSON or YAML."""
PATHS = (
    *("", ".", "..", "~", "~/zz", "~nosuchuser/x", "a\0b", "\x1b[31mred", "x" * 300, "x/" * 3000 + "x", "@OUT@/victim"),
    *(
        "../outside/victim",
        "/dev/zero",
        "/dev/full",
        "/dev/stdin",
        "/proc/self/environ",
        "/proc/self/fd/0",
        "/etc/shadow",
    ),
    *("${oc.env:RUNNER_SECRET}", "@OUT@/${oc.env:RUNNER_SECRET}", "file:///etc/passwd", "http://127.0.0.1:9/x", "-rf"),
    *("s3://bucket/x", "hf://datasets/x", "C:\\x", "a:b"),
    *("null", "$(touch @OUT@/pwned)", "\u202egnp", "\udcff", "*", "[a", "nosuch"),
)
"""In place of a path that is typed."""
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "NUL": b"\0" * 64,
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "deep list": b"[" * DEEP,
    "deep and closed": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a long number": b"1" * 5_000,
    "a long number inside": b'{"status": ' + b"9" * 5_000 + b"}",
    "a long number of hexadecimals": b"seed: 0x" + b"f" * 6_000,
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "NaN": b"NaN",
    "20,000 keys": json.dumps({f"k{number}": number for number in range(20_000)}).encode(),
    "a key twice": b'{"a": 1, "a": 2}',
    "alias bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(ord("b"), ord("k"))),
    "holds itself": b"a: &a [*a]\n",
    "python object": b"!!python/object/apply:os.system ['touch /tmp/runner-hostile-pwned']\n",
    "python name": b"a: !!python/name:os.system\n",
    "tag": b"!!binary {}\n",
    "date": b"a: 2024-99-99\n",
    "escape": b'{"status": "\x1b[2J"}',
    "pickle": b"cos\nsystem\n(S'touch /tmp/runner-hostile-pwned'\ntR.",
    "binary": bytes(range(256)) * 8,
}
"""In place of a file's content."""


def spoilt(name: str) -> dict[str, Prepare]:
    """All that can be put in place of a file of JSON or YAML."""
    ways: dict[str, Prepare] = {
        f"{name}: {title}": (lambda place, content=content: place.write(name, content) and None)
        for title, content in TEXTS.items()
    }
    return {
        **ways,
        f"{name}: gone": lambda place: place.remove(name),
        f"{name}: a FIFO": lambda place: place.pipe(name),
        f"{name}: /dev/zero": lambda place: place.link(name, "/dev/zero"),
        f"{name}: a link to a secret": lambda place: place.link(name, "@OUT@/secret.txt"),
        f"{name}: a link to itself": lambda place: place.link(name, name.rpartition("/")[2]),
        f"{name}: a folder": lambda place: _folder(place, name),
        f"{name}: cut off": lambda place: _cut(place, name),
    }


def _folder(place: Place, name: str) -> None:
    place.remove(name)
    (place.inside / name).mkdir(parents=True)


def _cut(place: Place, name: str) -> None:
    content = (place.inside / name).read_bytes()
    place.write(name, content[: len(content) // 2])


def spots(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value stands in a tree of objects and lists."""
    found = [path] if path else []
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        found += spots(value, (*path, key))
    return found


def with_value(values: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A tree with another value at a spot."""
    if not path:
        return value
    changed = values.copy()
    changed[path[0]] = with_value(values[path[0]], path[1:], value)
    return changed


def mutated(values: Any, rng: random.Random) -> tuple[str, Any]:
    """A tree with one to three odd spots, and what was done."""
    told = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        there = spots(values)
        if not there:
            break
        path = rng.choice(there)
        value = rng.choice(VALUES)
        told.append(f"{'.'.join(map(str, path))} = {str(value)[:40]!r}")
        values = with_value(values, path, value)
    return "; ".join(told), values


def edited_json(name: str, edit: Callable[[Any], Any]) -> Prepare:
    """Change what a JSON file holds."""

    def prepare(place: Place) -> None:
        values = edit(json.loads((place.inside / name).read_text()))
        place.write(name, json.dumps(values))

    return prepare


def noisy(content: bytes, rng: random.Random) -> bytes:
    """Bytes with some of them changed, inserted, taken out or repeated."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = rng.choice(
                    (b"\0", b"\xff\xff\xff\xff", b"\x1b[2J", b"${oc.env:RUNNER_SECRET}", b"../" * 9)
                )
            case _:
                data[at:at] = data[at : at + rng.randint(1, 200)]
    return bytes(data)
