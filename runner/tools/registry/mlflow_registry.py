"""MLflow's registry, through mlflow-skinny: versions are MLflow's, and their files are artifacts of an MLflow run.

What :class:`VersionRecord` says is a tag of the version, checksums included, so that artifacts are checked against what
the registry itself holds.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from runner.base.errors import MissingPackageError, RegistryError, how_to_install
from runner.base.files import as_json, replace
from runner.base.reasons import first_line
from runner.base.safe_text import mask_credentials, without_secrets
from runner.base.untrusted import UntrustedFileError, parse_json
from runner.run.contents import validated
from runner.tools.registry.folder_registry import (
    check_files,
    files_of,
    finished_record,
    of_package,
    publish_checked,
    work_folder,
)
from runner.tools.registry.versions import (
    MODEL_CARD_FILE,
    PACKAGE_FOLDER,
    VERSION_FILE,
    Draft,
    VersionRecord,
    not_registered,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

EXPERIMENT = "runner models"
_TAG = "runner.version"
_ARTIFACTS = "version"
_PER_PAGE = 500
_MOST_DESCRIPTION = 5_000  # characters, in databases that mind the length
# MLflow tries a server that does not answer for minutes, and draws bars of its own.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MlflowRegistry:
    """Versions of models in MLflow's registry, on a server or in an SQLite file."""

    def __init__(self, uri: str, cache: Path) -> None:
        """Make the client; nothing is asked yet.

        Args:
            uri: http://…, https://… or sqlite:///FILE, perhaps with mlflow+ before it.
            cache: the folder that packages are downloaded to for use.

        Raises:
            MissingPackageError: MLflow is not installed.
        """
        self._uri, self._cache = uri.removeprefix("mlflow+"), cache
        try:
            from mlflow.tracking import MlflowClient  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingPackageError(
                f"registry.uri at an address needs MLflow, which is not installed: {how_to_install('mlflow')}"
            ) from error
        with self._asked():
            self._client: MlflowClient = MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)

    @property
    def place(self) -> str:
        """The address, without credentials."""
        return without_secrets(self._uri)

    def names(self) -> list[str]:
        """The models that have a version of the runner's, sorted."""
        return sorted({version.name for version in self._found("")})

    def versions(self, name: str) -> list[int]:
        """The versions of a model, ascending; those that others registered are left out."""
        return sorted(int(version.version) for version in self._found(f"name='{name}'"))

    def aliases(self, name: str) -> dict[str, int]:
        """The version that each alias of a model names."""
        if not self.versions(name):
            return {}
        with self._asked():
            found = self._client.get_registered_model(name).aliases
        return {alias: int(version) for alias, version in found.items()}

    def read(self, name: str, version: int) -> VersionRecord:
        """What is known of a version."""
        return self._record(self._version(name, version))

    def set_alias(self, name: str, alias: str, version: int, *, holder: int | Literal["any"] | None = "any") -> None:
        """Let an alias name a version, whose files are checked first; MLflow itself does not compare the holder."""
        self.package(name, version)
        now = self.aliases(name).get(alias)
        if holder not in ("any", now):
            raise RegistryError(f"{name}@{alias} was set to version {now} meanwhile, and nothing was changed")
        with self._asked():
            self._client.set_registered_model_alias(name, alias, str(version))

    def package(self, name: str, version: int) -> Path:
        """The package folder of a version, downloaded once and checked each time."""
        found = self._version(name, version)
        record = self._record(found)
        files = of_package(record)
        folder = self._cache / files[f"{PACKAGE_FOLDER}/model.json"].sha256  # it has the checksum of the weights in it
        with suppress(RegistryError):
            check_files(folder, files, place=str(folder))
            return folder / PACKAGE_FOLDER
        with work_folder(folder) as temporary:
            self._fetch(found, list(files), temporary)
            check_files(temporary, files, place=f"{self.place}: {name}/{version}")
            replace(temporary, folder)  # also a damaged copy
        return folder / PACKAGE_FOLDER

    def download(self, name: str, version: int, output: Path) -> None:
        """Copy a version to a new folder."""
        found = self._version(name, version)
        record = self._record(found)
        with work_folder(output) as temporary:
            self._fetch(found, list(record.files), temporary)
            check_files(temporary, record.files, place=f"{self.place}: {name}/{version}")
            (temporary / VERSION_FILE).write_bytes(as_json(record.model_dump(mode="json")))
            (temporary / MODEL_CARD_FILE).write_text(found.description or "", encoding="utf-8")
            publish_checked(temporary, output)

    def add(self, name: str, draft: Draft) -> int:
        """Make a new version: its files become artifacts first, so that one that is cut short is no version."""
        with tempfile.TemporaryDirectory(prefix="runner-") as place:
            folder = Path(place)
            draft.write(folder)
            record = finished_record(name, 1, files_of(folder), draft.facts).model_dump(mode="json")
            del record["version"]  # MLflow chooses it
            with self._asked():
                self._ensure_model(name)
                run = self._client.create_run(self._experiment(), run_name=name, tags={"runner.run": _run_of(record)})
                self._client.log_artifacts(run.info.run_id, str(folder), artifact_path=_ARTIFACTS)
                for key, value in _numbers(record["metrics"]):
                    self._client.log_metric(run.info.run_id, key, value)
                self._client.set_terminated(run.info.run_id)
                source, tags = f"{run.info.artifact_uri}/{_ARTIFACTS}", {_TAG: json.dumps(record, allow_nan=False)}
                version = self._client.create_model_version(
                    name, source, run_id=run.info.run_id, tags=tags, await_creation_for=0
                )
        number = int(version.version)
        card = draft.card(VersionRecord.model_validate({**record, "version": number}))
        with self._asked():
            self._client.update_model_version(name, str(number), description=card[:_MOST_DESCRIPTION])
        return number

    def _found(self, query: str) -> list[ModelVersion]:
        found: list[ModelVersion] = []
        token = None
        with self._asked():
            while True:
                page = self._client.search_model_versions(query, max_results=_PER_PAGE, page_token=token)
                found += [version for version in page if _TAG in version.tags]
                token = page.token
                if not token:
                    return found

    def _version(self, name: str, version: int) -> ModelVersion:
        found = {int(each.version): each for each in self._found(f"name='{name}'")}
        if version not in found:
            raise not_registered(self, name, version, sorted(found))
        return found[version]

    def _record(self, version: ModelVersion) -> VersionRecord:
        place = f"{self.place}: {version.name}/{version.version}"
        try:
            values = parse_json(version.tags[_TAG], place)
        except UntrustedFileError as error:
            raise RegistryError(f"{place} is damaged: {error}") from error
        known = {**values, "version": int(version.version)} if isinstance(values, dict) else values
        record = VersionRecord.model_validate(validated(known, VersionRecord, place))
        if record.name != version.name:
            raise RegistryError(f"{place} is damaged: its tag {_TAG} is that of {record.name}")
        return record

    def _fetch(self, version: ModelVersion, files: list[str], folder: Path) -> None:
        with self._asked(), tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder.parent) as place:
            for file in files:
                got = self._client.download_artifacts(version.run_id or "", f"{_ARTIFACTS}/{file}", place)
                (folder / file).parent.mkdir(exist_ok=True)
                shutil.move(got, folder / file)

    def _ensure_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _experiment(self) -> str:
        """The id of the experiment whose runs hold the files."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra

        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        parts = urlsplit(self._uri)
        # Without a server, MLflow would put artifacts into the folder that this process was started in.
        beside = Path(parts.path[1:]).resolve().with_suffix(".artifacts").as_uri() if parts.scheme == "sqlite" else None
        try:
            return str(self._client.create_experiment(EXPERIMENT, artifact_location=beside))
        except MlflowException:
            found = self._client.get_experiment_by_name(EXPERIMENT)  # another process may have made it just now
            if found is None:
                raise
            return str(found.experiment_id)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Ask MLflow: not for minutes, without bars, and with what it refuses under a name of ours."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra
        from requests.exceptions import RequestException  # noqa: PLC0415 - MLflow's

        kept = {key: os.environ.get(key) for key in _SETTINGS}
        os.environ.update({key: value for key, value in _SETTINGS.items() if kept[key] is None})
        try:
            yield
        except (MlflowException, RequestException) as error:
            reason = mask_credentials(first_line(error))
            raise RegistryError(
                f"{self.place}: MLflow's registry refuses this, or does not answer: {reason}"
            ) from error
        finally:
            for key, value in kept.items():
                if value is None:
                    os.environ.pop(key, None)


def _run_of(record: dict[str, Any]) -> str:
    return str(record["lineage"]["run"])


def _numbers(metrics: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for split, found in metrics.items():
        for name, value in found.items():
            if isinstance(value, int | float):
                yield f"{split}_{name}", float(value)
