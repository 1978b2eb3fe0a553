"""Keeps a run of an MLflow server up to date with a run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from runner.base.files import locked, write_json
from runner.base.untrusted import read_json
from runner.run.run_folder import read_record
from runner.run.tracking.history import FolderFacts, Point, milliseconds_of

_MOST_METRICS = 900  # of 1,000 that a request may have
_MOST_PARAMS = 100
_MOST_CHARACTERS = 6_000  # of a parameter; tags may have 8,000
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "pruned": "KILLED", "died": "KILLED"}
_SENT = "runner.artifacts"
_OF_ALL = ("report.html", "config.yaml", "metrics.jsonl", "environment.txt", "evaluation")
_LOCK_WAIT_SECONDS = 60.0
# What a user has set is left alone. The follower itself tries again, and so must not wait for long in one request.
_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


class MlflowRun:
    """One run of an MLflow server, found again by the id in tracking.json or, before that was written, by a tag."""

    def __init__(self, run_dir: Path, *, uri: str, project: str, artifacts: str) -> None:
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds, in the follower only

        self._run_dir = run_dir
        self._project = project
        self._artifacts = artifacts
        self._client = MlflowClient(tracking_uri=uri)
        self._run_id: str | None = None
        self._tags: dict[str, str] = {}
        self._steps_sent = self._epochs_sent = -1
        self._is_running = False
        self._is_trial = (run_dir.parent / "sweep.json").is_file()

    def send(self, facts: FolderFacts) -> None:
        """Send all that the server lacks; after an error the server is asked anew what it has.

        Raises:
            Exception: whatever MLflow's client raises where the server does not answer, or refuses.
        """
        try:
            if self._run_id is None:
                self._run_id = self._connect(facts)
            self._send_metrics(self._run_id, facts)
            tags = _tags_of(facts)
            changed = {key: value for key, value in tags.items() if self._tags.get(key) != value}
            if changed:
                self._log(self._run_id, tags=changed)
                self._tags |= changed
            self._send_status(self._run_id, facts)
        except Exception:
            self._run_id = None
            raise

    def _connect(self, facts: FolderFacts) -> str:
        """The id of the run on the server, which is made if there is none, and what the server has of it."""
        run_id = self._known_run(facts) or self._new_run(facts)
        _write_id(self._run_dir, run_id)
        run = self._client.get_run(run_id)
        self._tags = dict(run.data.tags)
        self._is_running = run.info.status == "RUNNING"
        self._steps_sent = self._last_step(run_id, "learning_rate")
        self._epochs_sent = self._last_step(run_id, "epoch")
        known = run.data.params
        new = {key: text[:_MOST_CHARACTERS] for key, text in facts.config.items() if key not in known}
        # A parameter of MLflow never changes; one that a resumed run has changed is shown beside it.
        changed = {f"resumed.{key}": text for key, text in facts.config.items() if known.get(key, text) != text}
        for begin in range(0, len(new), _MOST_PARAMS):
            self._log(run_id, params=dict(list(new.items())[begin : begin + _MOST_PARAMS]))
        if changed:
            self._log(run_id, tags={key: text[:_MOST_CHARACTERS] for key, text in changed.items()})
        return run_id

    def _known_run(self, facts: FolderFacts) -> str | None:
        run_id = read_id(self._run_dir)
        if run_id is None:
            found = self._client.search_runs(
                [self._experiment()], f"tags.`runner.run` = '{_identity(facts, self._run_dir)}'"
            )
            return found[0].info.run_id if found else None
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run_id if run.info.lifecycle_stage == "active" else None

    def _new_run(self, facts: FolderFacts) -> str:
        tags = {"runner.run": _identity(facts, self._run_dir)}
        if self._is_trial:
            tags["mlflow.parentRunId"] = self._sweep_run(self._run_dir.parent, facts)
        run = self._client.create_run(
            self._experiment(),
            start_time=facts.start_milliseconds,
            tags=tags,
            run_name=shown_name(facts, self._run_dir),
        )
        return str(run.info.run_id)

    def _sweep_run(self, sweep_dir: Path, facts: FolderFacts) -> str:
        """The run that stands for a sweep; the first trial makes it."""
        with locked(sweep_dir / ".tracking.lock", wait_seconds=_LOCK_WAIT_SECONDS):
            run_id = read_id(sweep_dir)
            if run_id is None:
                tags = {"runner.sweep": str(sweep_dir)}
                name = "/".join(sweep_dir.parts[-2:])
                run = self._client.create_run(
                    self._experiment(), start_time=facts.start_milliseconds, tags=tags, run_name=name
                )
                run_id = str(run.info.run_id)
                _write_id(sweep_dir, run_id)
            else:  # trials before this one may have ended it
                self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        found = self._client.get_experiment_by_name(self._project)
        if found is None:
            try:
                return str(self._client.create_experiment(self._project))
            except MlflowException:  # another run has just made it
                found = self._client.get_experiment_by_name(self._project)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _last_step(self, run_id: str, key: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(run_id, key)), default=-1)

    def _send_metrics(self, run_id: str, facts: FolderFacts) -> None:
        for points in _requests([point for point in facts.steps if point.step > self._steps_sent]):
            self._log(run_id, points=points)
            self._steps_sent = points[-1].step
        for points in _requests([point for point in facts.epochs if point.step > self._epochs_sent]):
            self._log(run_id, points=points)
            self._epochs_sent = points[-1].step

    def _send_status(self, run_id: str, facts: FolderFacts) -> None:
        ended = _STATUS.get(facts.status)
        if ended is None:
            if not self._is_running:  # a resumed run
                self._client.update_run(run_id, status="RUNNING")
                self._client.set_tag(run_id, _SENT, "")
                self._tags[_SENT] = ""
                self._is_running = True
            return
        mark = f"{self._artifacts}, attempt {facts.record['attempts']}"
        if self._tags.get(_SENT) != mark:
            for path, place in files_to_send(self._run_dir, self._artifacts):
                send: Callable[..., None] = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
                send(run_id, str(path), place)
            self._client.set_tag(run_id, _SENT, mark)
            self._tags[_SENT] = mark
        end = milliseconds_of(facts.record.get("end")) or None
        self._client.set_terminated(run_id, status=ended, end_time=end)
        self._is_running = False
        if self._is_trial and (sweep := read_id(self._run_dir.parent)) and not _other_trials_run(self._run_dir):
            self._client.set_terminated(sweep, status="FINISHED", end_time=end)

    def _log(
        self,
        run_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        metrics = [
            Metric(key, value, point.milliseconds, point.step)
            for point in points
            for key, value in point.values.items()
        ]
        self._client.log_batch(
            run_id,
            metrics=metrics,
            params=[Param(key, value) for key, value in (params or {}).items()],
            tags=[RunTag(key, value) for key, value in (tags or {}).items()],
        )


def read_id(folder: Path) -> str | None:
    """The id of MLflow's run for a run or sweep folder, if it was sent before.

    Raises:
        UntrustedFileError: tracking.json is damaged.
    """
    try:
        values = read_json(folder / "tracking.json")
    except FileNotFoundError:
        return None
    found = values.get("mlflow") if isinstance(values, dict) else None
    return found if isinstance(found, str) and found.isalnum() else None


def files_to_send(run_dir: Path, artifacts: str) -> Iterator[tuple[Path, str | None]]:
    """Files and folders that are sent at the end, each with its place among the artifacts; without what is missing."""
    names = {"none": (), "model": ("model",), "all": ("model", *_OF_ALL)}[artifacts]
    for name in names:
        path = run_dir / name
        if path.exists():
            yield path, name if path.is_dir() else None


def _other_trials_run(run_dir: Path) -> bool:
    """Whether another trial of the sweep has begun and not ended; of a killed one nobody knows, so it counts too."""
    others = (file.parent for file in run_dir.parent.glob("*/run.json") if file.parent != run_dir)
    return any(read_record(other)["status"] == "running" for other in others)


def _write_id(folder: Path, run_id: str) -> None:
    if read_id(folder) != run_id:
        write_json(folder / "tracking.json", {"mlflow": run_id})


def _identity(facts: FolderFacts, run_dir: Path) -> str:
    folder = "/".join(run_dir.parts[-3:]).replace("'", "")  # which a search can't quote
    return f"{folder} {facts.record.get('start')}"


def shown_name(facts: FolderFacts, run_dir: Path) -> str:
    """The name of a run for people: its own, or that of its folder."""
    return facts.record.get("name") or "/".join(run_dir.parts[-2:])


def _tags_of(facts: FolderFacts) -> dict[str, str]:
    record = facts.record
    git, data = record.get("git") or {}, record.get("data") or {}
    tags = {
        "mlflow.runName": record.get("name"),
        "mlflow.note.content": record.get("notes"),
        "mlflow.source.name": "runner",
        "mlflow.source.git.commit": git.get("commit"),
        "group": record.get("group"),
        "runner.status": facts.status,
        "runner.git_dirty": git.get("dirty"),
        "runner.data_fingerprint": data.get("fingerprint"),
        "runner.device": record.get("device"),
        "runner.world_size": record.get("world_size"),
        "runner.attempts": record["attempts"],
        "runner.error": record["error"]["message"] if record.get("error") else None,
        "runner.model_sha256": facts.model_sha256,
        **(record.get("tags") or {}),
    }
    return {key: str(value)[:_MOST_CHARACTERS] for key, value in tags.items() if value is not None}


def _requests(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Points in portions that one request may have, each point whole."""
    portion: list[Point] = []
    size = 0
    for point in points:
        if portion and size + len(point.values) > _MOST_METRICS:
            yield portion
            portion, size = [], 0
        portion.append(point)
        size += len(point.values)
    if portion:
        yield portion
