"""Keeps a run of Weights & Biases up to date with a run folder, also offline."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from runner.base.files import write_json
from runner.base.untrusted import read_json
from runner.run.tracking.history import FolderFacts
from runner.run.tracking.mlflow_run import files_to_send, shown_name

_INIT_SECONDS = 30
_EXIT_CODES = {"completed": 0, "pruned": 0}


class WandbRun:
    """One run of W&B. Its own client keeps what it is given on disk and sends it in the background.

    W&B offline can't be asked what it has: `tracking-wandb.json` in the run folder says up to which step it was told.
    """

    def __init__(self, run_dir: Path, *, project: str, artifacts: str) -> None:
        self._run_dir = run_dir
        self._project = project
        self._artifacts = artifacts
        self._run: Any = None
        self._told = _read_state(run_dir)

    def send(self, facts: FolderFacts) -> None:
        """Hand over all that W&B was not told, and at the end of the run wait until it is sent, or on disk if offline.

        Raises:
            Exception: whatever W&B's client raises.
        """
        attempt = facts.record["attempts"]
        has_ended = facts.status != "running"
        if has_ended and self._told.get("ended") == [facts.status, attempt]:
            return
        if self._run is None:
            self._run = self._open(facts)
        points = sorted((*facts.steps, *facts.epochs), key=lambda point: point.step)
        last = self._told.get("step", -1)
        by_step: dict[int, dict[str, float]] = {}
        for point in points:
            if point.step > last:
                by_step.setdefault(point.step, {}).update(point.values, _timestamp=point.milliseconds / 1000)
        # An epoch's last step has two points, and W&B takes a step only once: wait for the epoch.
        newest = max((point.step for point in facts.epochs), default=-1)
        for step, values in by_step.items():
            if step <= newest or has_ended:
                self._run.log(values, step=step)
                self._told = {**self._told, "step": step}
        _write_state(self._run_dir, self._told)
        if has_ended:
            self._end(facts)

    def _open(self, facts: FolderFacts) -> Any:  # noqa: ANN401 - W&B's run
        import wandb  # noqa: PLC0415 - in the follower only

        record = facts.record
        os.environ.setdefault("WANDB_SILENT", "true")
        run_id = self._told.get("id") or secrets.token_hex(4)
        self._told = {**self._told, "id": run_id}
        _write_state(self._run_dir, self._told)
        is_trial = (self._run_dir.parent / "sweep.json").is_file()
        group = "/".join(self._run_dir.parts[-3:-1]) if is_trial else None
        return wandb.init(
            project=self._project,
            id=run_id,
            resume="allow",
            dir=str(self._run_dir),
            name=shown_name(facts, self._run_dir),
            group=record.get("group") or group,
            notes=record.get("notes"),
            tags=[f"{key}={value}"[:64] for key, value in (record.get("tags") or {}).items()],
            config={
                **facts.config,
                "git_commit": (record.get("git") or {}).get("commit"),
                "data_fingerprint": (record.get("data") or {}).get("fingerprint"),
            },
            # The folder has what W&B would collect of the process, which here is not that of the training.
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                init_timeout=_INIT_SECONDS,
            ),
        )

    def _end(self, facts: FolderFacts) -> None:
        import wandb  # noqa: PLC0415 - imported by now

        for path, _ in files_to_send(self._run_dir, self._artifacts):
            kind = "model" if path.name == "model" else "file"
            artifact = wandb.Artifact(
                f"{path.stem}-{self._told['id']}", type=kind, metadata={"sha256": facts.model_sha256}
            )
            (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path))
            self._run.log_artifact(artifact)
        self._run.summary["status"] = facts.status
        self._run.finish(exit_code=_EXIT_CODES.get(facts.status, 1))
        self._run = None
        self._told = {**self._told, "ended": [facts.status, facts.record["attempts"]]}
        _write_state(self._run_dir, self._told)


def _read_state(run_dir: Path) -> dict[str, Any]:
    try:
        values = read_json(run_dir / "tracking-wandb.json")
    except FileNotFoundError:
        return {}
    if not isinstance(values, dict) or not isinstance(values.get("step", 0), int):
        return {}
    if not (isinstance(values.get("id"), str) and values["id"].isalnum()):
        return {}
    return values


def _write_state(run_dir: Path, state: dict[str, Any]) -> None:
    if _read_state(run_dir) != state:
        write_json(run_dir / "tracking-wandb.json", state)
