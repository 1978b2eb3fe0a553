import json

import pytest

import runner
from runner.base.errors import CheckpointError, ConfigError
from runner.base.files import sha256_of
from runner.cli.commands.runs.repeat import run
from tests.made_runs import SMALL, make_run


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeat")
    return runner.fit(runner.load_config([*SMALL, f"output_dir={folder}/outputs"])).run_dir


def others(run_dir):
    return [path for path in run_dir.parent.parent.glob("*/*") if path != run_dir]


def test_a_repeated_run_equals_the_first_bit_for_bit(original, caplog):
    assert run([f"run={original}", f"output_dir={original.parents[1]}"]) == 0
    (repeated,) = others(original)
    digests = [sha256_of(path / "model" / "model.safetensors") for path in (original, repeated)]
    assert digests[0] == digests[1]
    record = json.loads((repeated / "run.json").read_text())
    assert record["repeats"] == str(original)
    assert [message.levelname for message in caplog.records if message.levelname == "WARNING"] == []
    first = json.loads((original / "run.json").read_text())
    assert first["data"] == record["data"]
    assert first["experiment"] == {"model": "shufflenet_v2_x0_5", "data": "synthetic", "data_root": None}


def test_other_code_environment_and_data_are_said(original, caplog, tmp_path, monkeypatch):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    record = json.loads((copy / "run.json").read_text())
    record |= {"git": {"commit": "f" * 40, "dirty": True}, "device": "cuda: H200", "world_size": 8}
    record["versions"]["torch"] = "1.0"
    (last,) = copy.glob("checkpoints/*/state.json")
    last.write_text(json.dumps(json.loads(last.read_text()) | {"data_fingerprint": "other"}))
    (copy / "run.json").write_text(json.dumps(record))
    (copy / "source.patch").write_text("diff --git a/x b/x\n")
    launched = []
    monkeypatch.setattr("runner.launch.launch", lambda *args, **options: launched.append((args, options)))
    run([f"run={copy}", "trainer.epochs=3"])
    for words in (
        f"git checkout {'f' * 40}",
        "uncommitted changes differ",
        "torch differs: the run had 1.0",
        "the number of processes differs: the run had 8",
        "the device differs: the run had cuda: H200",
        "the data set differs",
    ):
        assert words in caplog.text
    ((ready, training), _) = launched[0]
    assert ready.config.trainer.epochs == 3
    assert training.attempt.overrides[-1] == "trainer.epochs=3"


def test_a_wrong_call_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}"])
    with pytest.raises(ConfigError, match="did you mean trainer"):
        run([f"run={make_run(tmp_path / 'a')}", "trainr.epochs=3"])
