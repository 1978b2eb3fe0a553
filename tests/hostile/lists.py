"""Family of lists: CSV and COCO."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.hostile import odd
from tests.hostile.archives import NAMES
from tests.hostile.command_lines import ON_PHOTOS, SMALL
from tests.hostile.place import Input, Place, Prepare

_CSV_DOORS = (
    ("dataset", "import", "input=x.csv", "output=out", "root=photos/train", "workers=1"),
    ("dataset", "split", "input=x.csv", "output=out", "root=photos/train"),
    (
        *(
            "validate",
            "data=csv",
            "data.root=photos/train",
            "data.train=x.csv",
            "data.val_fraction=0.5",
            "data.batch_size=1",
        ),
        *(item for item in SMALL if not item.startswith("data")),
    ),
    (*("validate", "data.exclude=x.csv"), *ON_PHOTOS),
)


def _lists() -> Iterator[tuple[str, str | bytes]]:
    rows = "ant/0.png,ant\nant/1.png,ant\nbee/0.png,bee\nbee/1.png,bee\n"
    for name in NAMES:
        quoted = '"' + name.replace('"', '""') + '"'
        yield f"class {name[:30]!r}", f"path,label\n{rows}cat/0.png,{quoted}\ncat/1.png,{quoted}\n"
        yield f"path {name[:30]!r}", f"path,label\n{rows}{quoted},ant\n"
    for path in odd.PATHS:
        yield f"path {path[:30]!r}", f"path,label\n{rows}{path},ant\n"
    yield "nan and null", f"path,label\n{rows}cat/0.png,nan\ncat/1.png,NaN\n"
    yield "a long field", f"path,label\n{'x' * 200_000},a\n"
    yield "an open quote", f'path,label\n{rows}"ant/2.png,ant\n' + rows * 1000
    yield "NUL", f"path,label\n{rows}ant\0/2.png,ant\n"
    yield "many columns", "path,label" + ",x" * 20_000 + "\n" + rows
    yield "columns twice", "path,label,label\n" + "ant/0.png,a,b\n"
    yield "no header", rows
    yield "only a header", "path,label\n"
    yield "no columns", "a,b\n1,2\n"
    yield "CR", rows.replace("\n", "\r")
    yield "an escape in the header", "path,label,\x1b[2J\n" + rows
    yield "a formula", f"path,label\n{rows}cat/0.png,=HYPERLINK(1)\ncat/1.png,=HYPERLINK(1)\n"
    yield "many rows", "path,label\n" + "ant/0.png,ant\n" * 50_000
    yield "contradictions", "path,label\nant/0.png,ant\nant/0.png,bee\n"
    yield from odd.TEXTS.items()


def _coco() -> Iterator[tuple[str, Any]]:
    def made(**more: Any) -> dict[str, Any]:
        images = [
            {"id": n, "file_name": f"{label}/{n % 2}.png"} for n, label in enumerate(("ant", "ant", "bee", "bee"))
        ]
        return {
            "images": images,
            "annotations": [
                {"id": n, "image_id": n, "category_id": n // 2, "bbox": [0, 0, 1, 1], "area": 1} for n in range(4)
            ],
            "categories": [{"id": 0, "name": "ant"}, {"id": 1, "name": "bee"}],
            **more,
        }

    for name in NAMES:
        yield f"category {name[:30]!r}", made(categories=[{"id": 0, "name": name}, {"id": 1, "name": "bee"}])
        yield f"file {name[:30]!r}", made(images=[{"id": 0, "file_name": name}])
    for value in odd.VALUES:
        for key in ("images", "annotations", "categories"):
            yield f"{key} = {str(value)[:30]!r}", made(**{key: value})
        yield f"id {str(value)[:30]!r}", made(images=[{"id": value, "file_name": "ant/0.png"}])
        yield f"file_name {str(value)[:30]!r}", made(images=[{"id": 0, "file_name": value}])
        yield f"category id {str(value)[:30]!r}", made(categories=[{"id": value, "name": "a"}])
        yield f"area {str(value)[:30]!r}", made(annotations=[{"id": 0, "image_id": 0, "category_id": 0, "area": value}])


_COCO_DOOR = (
    "dataset",
    "import",
    "input=x.json",
    "output=out",
    "root=photos/train",
    "workers=1",
    "multiple_labels=largest",
)


def _photos_and(name: str, content: str | bytes) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("photos")
        if isinstance(content, str):
            (place.inside / name).write_bytes(place.filled(content).encode("utf-8", "surrogateescape"))
        else:
            place.write(name, content)

    return prepare


def table() -> Iterator[Input]:
    """CSV lists and COCO files."""
    for title, content in _lists():
        for door in _CSV_DOORS:
            yield Input(f"{door[0]} {door[1]}: x.csv: {title}", door, _photos_and("x.csv", content))
    for title, values in _coco():
        yield Input(f"x.json: {title}", _COCO_DOOR, _photos_and("x.json", json.dumps(values)))
    for title, content in odd.TEXTS.items():
        yield Input(f"x.json: {title}", _COCO_DOOR, _photos_and("x.json", content))
    for name, door in (
        ("x.csv", _CSV_DOORS[0]),
        ("x.csv", _CSV_DOORS[1]),
        ("x.csv", _CSV_DOORS[2]),
        ("x.csv", _CSV_DOORS[3]),
        ("x.json", _COCO_DOOR),
    ):
        for title, spoil in odd.spoilt(name).items():
            if "cut off" not in title:
                yield Input(f"{door[0]} {door[1]}: {title}", door, spoil)


def grown(rng: random.Random) -> Input:
    """Noise in lists, odd values in COCO files."""
    seed = rng.random()
    if rng.random() < 0.5:
        _, values = rng.choice(list(_coco())[:10])
        told, changed = odd.mutated(values, random.Random(seed))
        return Input(f"x.json: {told}"[:200], _COCO_DOOR, _photos_and("x.json", json.dumps(changed)))
    title, content = rng.choice([item for item in _lists() if len(item[1]) < 5_000])
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    door = rng.choice(_CSV_DOORS)
    return Input(f"{door[0]} {door[1]}: noisy {title}", door, _photos_and("x.csv", odd.noisy(raw, random.Random(seed))))
