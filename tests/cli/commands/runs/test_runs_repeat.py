import json

import pytest

import runner
from runner.base.errors import CheckpointError, ConfigError
from runner.base.files import sha256_of
from runner.cli.commands.runs.environment import run as environment
from runner.cli.commands.runs.repeat import run
from runner.run.snapshot import FILE_NAME, take_snapshot
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


def test_the_code_of_a_snapshot_is_compared_and_not_run(original, caplog, tmp_path, monkeypatch):
    import shutil
    import subprocess

    code = tmp_path / "code"
    (code / "runner").mkdir(parents=True)
    (code / "runner" / "__init__.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    subprocess.run(["git", "init", "-q", code], check=True)
    taken = take_snapshot(code / "runner")
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    (copy / FILE_NAME).write_bytes(taken.archive)
    record = json.loads((copy / "run.json").read_text()) | {"snapshot": taken.facts, "git": {"commit": "f" * 40}}
    (copy / "run.json").write_text(json.dumps(record))
    monkeypatch.setattr("runner.launch.launch", lambda *_, **__: None)
    monkeypatch.chdir(code / "runner")
    run([f"run={copy}"])
    assert "differs" not in caplog.text, "the files are the same, whatever the commit"
    assert environment([f"run={copy}", f"output={tmp_path / 'rebuilt'}"]) == 0
    monkeypatch.chdir(tmp_path / "rebuilt" / "source" / "runner")
    run([f"run={copy}"])
    assert "differs" not in caplog.text, "also outside of git"
    (tmp_path / "rebuilt" / "source" / "runner" / "__init__.py").write_text("# other")
    run([f"run={copy}"])
    assert "1 of 1 files of the run's snapshot are other ones here or missing: runner/__init__.py;" in caplog.text
    assert not (tmp_path / "trace").exists()


def test_a_wrong_call_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}"])
    with pytest.raises(ConfigError, match="did you mean trainer"):
        run([f"run={make_run(tmp_path / 'a')}", "trainr.epochs=3"])
