"""Family of registries of models: version.json, aliases.json, and what lies in the place of a version."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.hostile import odd
from tests.hostile.place import Input, Place, Prepare, linked

DOORS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "model=models:/birds@champion", "input=photos", "output=scores.csv"),
    "evaluate": ("evaluate", "model=models:/birds/1", "data.val=photos/val", "output=out"),
    "load_model": ("load_model", "models:/birds@champion"),
    "list": ("models", "list"),
    "show": ("models", "show", "name=birds", "version=1"),
    "promote": ("models", "promote", "name=birds", "version=1", "alias=other"),
    "download": ("models", "download", "name=birds@champion", "output=copy"),
    "register": ("models", "register", "run=run", "name=birds"),
}
_VERSION, _ALIASES = "models/birds/1/version.json", "models/birds/aliases.json"
_FILE = {"sha256": "0" * 64, "bytes": 1}
_RECORD: tuple[tuple[str, Any], ...] = (
    ("format", 99),
    ("name", "../birds"),
    ("name", "\x1b[2J"),
    ("version", 2),
    ("version", 10**30),
    ("registered", "\x1b[2J\n" * 100),
    ("files", {}),
    ("files", {"../../../outside/victim": _FILE}),
    ("files", {"@OUT@/victim": _FILE}),
    ("files", {f"file{number}": _FILE for number in range(10**5)}),
    ("files", {"model/model.json": {"sha256": "0" * 64, "bytes": 10**15}, "model/model.safetensors": _FILE}),
    ("lineage", {"run": "\x1b[2J", "tags": {"a": "${oc.env:RUNNER_SECRET}"}}),
    ("architecture", "os.system"),
    ("num_classes", 10**400),
    ("best", {"metric": "\x1b[2J", "value": 10**200}),
    ("metrics", {"val": {"top1": "x" * 10**6, "count": 10**200, "loss": 1e308}}),
)
_ALIAS: tuple[Any, ...] = ({"champion": 2}, {"champion": "1"}, {"champion": -1}, {"../x": 1}, {"\x1b[2J": 1}, [1])
# Not the registry's folder itself, which is the user's to name, and may be a link.
_LINKED = ("models/birds", "models/birds/1", "models/birds/1/model", "models/birds/1/index.html", _ALIASES)


def registry(*edits: Prepare) -> Prepare:
    """A registry with one version, beside the run that it is from, with these edits."""

    def prepare(place: Place) -> None:
        for name in ("run", "photos"):
            place.copy(name)
        place.copy("run/model", "models/birds/1/model")
        folder = place.inside / "models/birds/1"
        (folder / "index.html").write_text("<p>")
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {
            path.relative_to(folder).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
            for path in found
        }
        record = {
            **{"format": 1, "name": "birds", "version": 1, "registered": "now", "files": files},
            **{"lineage": {"run": "run", "tags": {}}, "architecture": "x", "num_classes": 3, "best": {}, "metrics": {}},
        }
        (folder / "version.json").write_text(json.dumps(record))
        (place.inside / _ALIASES).write_text('{"champion": 1}')
        for edit in edits:
            edit(place)

    return prepare


def table() -> Iterator[Input]:
    """What is read of a registry, by each command that reads it."""
    yield from _contents()
    yield from _places()


def _contents() -> Iterator[Input]:
    for name, doors in ((_VERSION, ("show", "list", "download", "load_model")), (_ALIASES, ("list", "promote"))):
        for title, spoil in odd.spoilt(name).items():
            yield from (Input(f"{door}: {title}", DOORS[door], registry(spoil)) for door in doors)
    for key, value in _RECORD:
        edit = odd.edited_json(_VERSION, lambda values, key=key, value=value: {**values, key: value})
        for door in ("show", "list", "download", "predict", "register"):
            yield Input(f"{door}: version.json {key} = {str(value)[:50]}", DOORS[door], registry(edit))
    for value in _ALIAS:
        edit = odd.edited_json(_ALIASES, lambda _, value=value: value)
        for door in ("list", "load_model", "promote"):
            yield Input(f"{door}: aliases.json {value}", DOORS[door], registry(edit))


def _places() -> Iterator[Input]:
    for name, target in itertools.product(_LINKED, ("@OUT@", "/dev/zero", "@OUT@/secret.txt")):
        for door, argv in DOORS.items():
            yield Input(f"{door}: {name} -> {target}", argv, registry(linked(name, target)))
    for name in ("models/birds/.lock", "models/birds/1/README.md", "models/birds/1/model/model.safetensors"):
        for door in ("promote", "register", "download", "evaluate"):
            yield Input(f"{door}: {name} is a FIFO", DOORS[door], registry(lambda place, name=name: place.pipe(name)))
    for reference in ("models:/../run", "models:/birds/../../run/1", "models:/./1", "models:/birds@../1", "models:/"):
        yield Input(f"predict: {reference}", ("predict", f"model={reference}", *DOORS["predict"][2:]), registry())
    for name in ("../birds", ".", "a/b", "@OUT@/x", "x" * 300, "\x1b[2J", "-m"):
        yield Input(f"register: name {name}", ("models", "register", "run=run", f"name={name}"), registry())


def grown(rng: random.Random) -> Input:
    """Odd values in version.json and aliases.json."""
    seed, name = rng.random(), rng.choice((_VERSION, _VERSION, _ALIASES))
    door = rng.choice(tuple(DOORS))
    edit = odd.edited_json(name, lambda values: odd.mutated(values, random.Random(seed))[1])
    return Input(f"{door}: a mutated {name}", DOORS[door], registry(edit))
