"""Every key that takes a path refuses an address, by the one rule."""

from __future__ import annotations

import pytest
import yaml

from runner.base.errors import ConfigError
from runner.cli.call import read_call
from runner.config import CONF_DIR
from runner.config.schema import Config
from runner.config.schema.calls import CALLS
from runner.config.schema.checks.effects import keys_as_typed
from runner.library import load_config

# Plain text, but no path.
NO_PATHS = {
    "checkpoint",
    "path_column",
    "label_column",
    "split_column",
    "group_column",
    "delimiter",
    "encoding",
    "sha256",
    "pattern",
    "name",
    "group",
    "notes",
    "sort",
    "tracker.project",
    "tracker.uri",
    "serve.host",
}
KEYS = sorted(key for key in set(keys_as_typed(Config)) if key.removeprefix("run.") not in NO_PATHS)
KEYS_OF_CALLS = [
    (command, key)
    for command, rules in CALLS.items()
    for key in keys_as_typed(rules)
    if key not in NO_PATHS and not (command.startswith("runs ") and key == "model")
]
OPTION = {"data.exclude": "data=synthetic", "data.root": "data=folder", "data.train": "data=csv"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("address", ["s3://bucket/x.pt", "https://host/x.pt", "file:///x.pt"])
def test_of_an_experiment(key, address):
    with pytest.raises(ConfigError) as caught:
        load_config([OPTION.get(key, "seed=1"), f"{key}={address}"])
    assert [(problem.key, problem.value) for problem in caught.value.problems] == [(key, address)]
    assert "is a" in caught.value.problems[0].message


@pytest.mark.parametrize(("command", "key"), KEYS_OF_CALLS)
def test_of_a_command(command, key):
    values = yaml.safe_load((CONF_DIR / f"{command.replace(' ', '_')}.yaml").read_text())
    needed = [f"{name}=x" for name, value in values.items() if value == "???" and name != key]
    with pytest.raises(ConfigError, match=f"{key} = 's3://bucket/x': is a remote address"):
        read_call(command, CALLS[command], [*needed, f"{key}=s3://bucket/x"])


def test_where_nodes_meet_is_no_path():
    config = load_config(["dist.nodes=2", "dist.node_rank=0", "dist.rendezvous=file:///shared/x"])
    assert config.dist.rendezvous == "file:///shared/x"
