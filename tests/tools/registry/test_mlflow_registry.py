from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from runner.base.errors import MissingPackageError, RegistryError
from runner.tools.registry.mlflow_registry import MlflowRegistry
from runner.tools.registry.resolve import alias_version, open_registry, resolve_model
from tests.tools.registry.conftest import FACTS, small_draft

# MLflow's database layer uses what SQLAlchemy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with an MLflow registry in SQLite, which takes MLflow seconds to make."""
    place = tmp_path_factory.mktemp("mlflow")
    MlflowRegistry(f"sqlite:///{place}/registry.db", place / "cache").names()
    return place


@pytest.fixture
def mlflow(place, tmp_path, monkeypatch) -> MlflowRegistry:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    registry = open_registry(f"sqlite:///{place}/registry.db")
    assert isinstance(registry, MlflowRegistry)
    return registry


def artifact(place: Path, content: bytes) -> Path:
    """The artifact with the weights of a version."""
    (found,) = (path for path in place.rglob("model.safetensors") if path.read_bytes() == content)
    return found


def test_versions_and_aliases_are_mlflow_s(mlflow, place, tmp_path):
    assert [mlflow.add("birds", small_draft(f"birds {number}".encode())) for number in (1, 2)] == [1, 2]
    assert mlflow.versions("birds") == [1, 2] and mlflow.versions("ants") == []
    assert "birds" in mlflow.names()
    mlflow.set_alias("birds", "champion", 2, holder=None)
    assert mlflow.aliases("birds") == {"champion": 2}
    with pytest.raises(RegistryError, match="was set to version 2 meanwhile"):
        mlflow.set_alias("birds", "champion", 1, holder=1)
    record = mlflow.read("birds", 2)
    assert (record.name, record.version, record.metrics) == ("birds", 2, FACTS["metrics"])
    uri = f"sqlite:///{place}/registry.db"
    assert alias_version("models:/birds@champion", uri) == 2
    package = resolve_model("models:/birds@champion", uri)
    assert (package / "model.safetensors").read_bytes() == b"birds 2"
    assert package.is_relative_to(tmp_path / "runner" / "models")
    assert not (Path.cwd() / "mlruns").exists(), "artifacts lie beside the database"


def test_a_copy_in_the_cache_that_is_damaged_is_replaced(mlflow):
    version = mlflow.add("cached", small_draft(b"cached"))
    package = mlflow.package("cached", version)
    (package / "model.safetensors").write_bytes(b"broken")
    assert (mlflow.package("cached", version) / "model.safetensors").read_bytes() == b"cached"


def test_a_download_is_checked(mlflow, place, tmp_path):
    version = mlflow.add("ants", small_draft(b"ants"))
    mlflow.download("ants", version, tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "version.json").read_text())["name"] == "ants"
    assert (tmp_path / "whole" / "README.md").read_text() == f"# ants, version {version}\n"
    artifact(place, b"ants").write_bytes(b"bees")
    for use in (
        lambda: mlflow.download("ants", version, tmp_path / "copy"),
        lambda: mlflow.package("ants", version),
        lambda: mlflow.set_alias("ants", "champion", version),
    ):
        with pytest.raises(RegistryError, match=r"model\.safetensors is missing or differs"):
            use()
    assert [path.name for path in tmp_path.iterdir() if path.name != "runner"] == ["whole"]
    assert list((tmp_path / "runner" / "models").iterdir()) == []
    assert mlflow.aliases("ants") == {}


def test_what_others_registered_is_left_alone(mlflow):
    mlflow._client.create_registered_model("theirs")
    theirs = mlflow._client.create_model_version("theirs", "file:///nowhere", tags={"a": "b"}, await_creation_for=0)
    damaged = mlflow._client.create_registered_model("damaged")
    mlflow._client.create_model_version(damaged.name, "x", tags={"runner.version": "[1]"}, await_creation_for=0)
    assert "theirs" not in mlflow.names()
    with pytest.raises(RegistryError, match="has no model 'theirs'"):
        mlflow.package("theirs", int(theirs.version))
    with pytest.raises(Exception, match="damaged/1 is damaged"):
        mlflow.read("damaged", 1)


def test_a_server_that_is_gone_is_named_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    registry = MlflowRegistry("mlflow+http://me:hunter2@127.0.0.1:9", tmp_path)
    with pytest.raises(RegistryError, match=r"http://\*\*\*@127\.0\.0\.1:9: MLflow.s registry refuses") as caught:
        registry.names()
    assert "hunter2" not in str(caught.value)


def test_without_mlflow_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(MissingPackageError, match="pip install"):
        open_registry("http://127.0.0.1:5000")
