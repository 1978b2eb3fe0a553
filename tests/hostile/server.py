"""A process that has imported everything once and tries inputs in forks of itself.

`python -m tests.hostile.server` reads lines `FAMILY NUMBER` and answers each with a line of JSON;
`python -m tests.hostile.server FAMILY NUMBER` tries this one and shows what it printed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from pathlib import Path

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def prepared() -> None:
    """Import what an input may need, and let what is made once be made."""
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    import sklearn.datasets  # noqa: F401 - its parts compile texts of their own when they are imported
    import torch

    import runner

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(runner.__path__, "runner."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    runner.load_config(["trainer.epochs=1"])


def serve(requests: list[tuple[str, int]] | None) -> None:
    """Answer requests: these, or those that come in."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="runner-hostile-") as name:
        folder = Path(os.path.realpath(name))
        os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")
        prepared()
        from tests.hostile.families import input_of
        from tests.hostile.harness import attempt
        from tests.hostile.place import Place
        from tests.hostile.templates import make_templates

        make_templates(folder)
        gc.collect()
        gc.freeze()
        lines = (line.rsplit(maxsplit=1) for line in sys.stdin) if requests is None else requests
        for family, number in lines:
            try:
                item = input_of(family, int(number))
                verdict = attempt(item, Place(base=folder / "place", templates=folder))
                answer = {"title": item.title, "argv": item.argv, **vars(verdict)}
            except Exception:
                answer = {"broken": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    os._exit(0)  # without what the libraries say of their own at the end


if __name__ == "__main__":
    serve([(" ".join(sys.argv[1:-1]), int(sys.argv[-1]))] if len(sys.argv) > 1 else None)
