"""Makes the packaged model of a completed run a version of a registered model."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

from runner.base.errors import RegistryError
from runner.base.safe_text import mask_credentials_in
from runner.run.package import CARD_FILE, WEIGHTS_FILE, read_package
from runner.tools.registry.card import write_card
from runner.tools.registry.versions import PACKAGE_FOLDER, Draft, ModelRegistry
from runner.tools.runs.past import PastRun, data_of, has_top5, read_run

_PAGE = "index.html"
_DRAWN = ("Loss", "Accuracy")


def register(registry: ModelRegistry, run_dir: Path, name: str) -> int:
    """Register the model of a run.

    Args:
        registry: where to.
        run_dir: the full path of a run folder.
        name: the model that gets another version.

    Returns:
        The number of the version.

    Raises:
        RegistryError: the run is not completed.
        CheckpointError: the folder is no run folder, or its package is missing or damaged.
        OutputError: the version can't be written.
    """
    run = read_run(run_dir)
    if run.status != "completed":
        raise RegistryError(
            f"{run_dir} is {run.status}, and only completed runs are registered; python -m runner resume run=DIR "
            "completes one"
        )
    return registry.add(name, draft_of(run))


def draft_of(run: PastRun) -> Draft:
    """The next version, from a completed run."""
    package = read_package(run.path)
    from runner.tools.report.charts import training_curves  # noqa: PLC0415 - matplotlib only once the run is fit for it
    from runner.tools.report.write import render  # noqa: PLC0415

    drawn = {picture.title: picture.source for picture in training_curves(run.rows, has_top5=has_top5(run))}
    curves = {f"{title.lower()}.svg": drawn[title] for title in _DRAWN if title in drawn}

    def write(folder: Path) -> None:
        (folder / PACKAGE_FOLDER).mkdir()
        shutil.copyfile(package.weights_file, folder / PACKAGE_FOLDER / WEIGHTS_FILE)
        shutil.copyfile(package.weights_file.with_name(CARD_FILE), folder / PACKAGE_FOLDER / CARD_FILE)
        copied = read_package(folder / PACKAGE_FOLDER)
        if copied.card.weights_sha256 != package.card.weights_sha256:
            raise RegistryError(f"{run.path}: its package was replaced meanwhile, and nothing was registered")
        for file, source in curves.items():
            (folder / file).write_bytes(base64.b64decode(source.partition(",")[2]))
        (folder / _PAGE).write_text(render(run), encoding="utf-8", errors="backslashreplace")

    facts = {
        "lineage": _lineage(run),
        "architecture": package.card.architecture.name,
        "num_classes": package.card.num_classes,
        "best": package.card.best,
        "metrics": package.card.metrics,
    }
    return Draft(
        write=write,
        facts=mask_credentials_in(facts),
        card=lambda record: write_card(record, package.card.classes, tuple(curves)),
    )


def _lineage(run: PastRun) -> dict[str, Any]:
    record, git, experiment = run.record, run.record.get("git") or {}, run.record.get("experiment") or {}
    return {
        "run": str(run.path),
        **{key: record.get(key) for key in ("name", "group", "start", "end")},
        "tags": record.get("tags") or {},
        "git_commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        "data": experiment.get("data_root") or experiment.get("data"),
        "data_fingerprint": data_of(run).get("fingerprint"),
    }
