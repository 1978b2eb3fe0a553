"""The rules of the group `tracker`."""

import pytest

from runner.base.errors import ConfigError
from runner.library import load_config


@pytest.mark.parametrize("rest", ["/?access_token=planted-token", "/mlflow#planted-token"])
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_token_in_the_address_of_a_server_is_refused_and_not_shown(rest, is_typed, monkeypatch):
    """Nothing would mask it in config.yaml, run.json, the logs and the report."""
    monkeypatch.setenv("TRACKER", f"https://host{rest}")
    uri = f'"https://host{rest}"' if is_typed else "${oc.env:TRACKER}"
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_TOKEN") as refused:
        load_config(["tracker=mlflow", f"tracker.uri={uri}"])
    assert "tracker.uri" in str(refused.value)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "https://host/mlflow", "sqlite:////tmp/runs.db"])
def test_addresses_of_servers_and_databases_are_taken(uri):
    config = load_config(["tracker=[mlflow,csv]", f"tracker.uri={uri}"])
    assert config.tracker.uri == uri
    assert set(config.tracker.names) == {"mlflow", "csv"}
