"""How long it takes to know the files of a large data set: the first start, which lists them, and each one after it.

    python benchmarks/index_start.py [--images 1281167] [--classes 1000] [--folder FOLDER]

Makes a folder of empty files with names as ImageNet has them (about as many inodes, no content), drops nothing from the
system's caches, and removes it again. Each start is a process of its own that imports what a start needs and opens the
folder; the time is that of opening alone. Memory is what the process holds by itself at the end, the mapped list apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "index_start.json"
START = """
import json, sys, time
from pathlib import Path
from runner.data.cache.index_cache import load_or_scan
started = time.perf_counter()
index, note = load_or_scan(sys.argv[1], key="data.train", cache=Path(sys.argv[2]))
seconds = time.perf_counter() - started
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
anonymous = int(status["RssAnon"].split()[0]) / 1024
print(json.dumps({"seconds": seconds, "private_mib": anonymous, "images": len(index), "note": note,
                  "kind": type(index).__name__}))
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--images", type=int, default=1_281_167)
    arguments.add_argument("--classes", type=int, default=1000)
    arguments.add_argument("--starts", type=int, default=5)
    arguments.add_argument("--folder", type=Path, default=None)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        root, cache = Path(temporary, "train"), Path(temporary, "cache")
        make(root, given.images, given.classes)
        first = start(root, cache)
        later = [start(root, cache) for _ in range(given.starts)]
        file_mib = sum(file.stat().st_size for file in cache.iterdir()) / 2**20
    result = {
        "images": given.images,
        "classes": given.classes,
        "first_start_seconds": first["seconds"],
        "later_start_seconds": float(np.median([run["seconds"] for run in later])),
        "later_start_seconds_all": [run["seconds"] for run in later],
        "first_start_private_mib": first["private_mib"],
        "later_start_private_mib": float(np.median([run["private_mib"] for run in later])),
        "kept_list_mib": file_mib,
        "later_start_kind": later[0]["kind"],
        "cores": os.cpu_count(),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def make(root: Path, num_images: int, num_classes: int) -> None:
    """Empty files, then the two seconds after which a folder counts as unchanged."""
    for label in range(num_classes):
        folder = root / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(label, num_images, num_classes):
            os.close(os.open(folder / f"n{label:08d}_{number}.JPEG", os.O_CREAT))
    time.sleep(3)


def start(root: Path, cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", START, str(root), str(cache)], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
