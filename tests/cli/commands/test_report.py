import pytest

from runner.base.errors import CheckpointError, ConfigError, OutputError
from runner.cli.commands.report import run
from tests.made_runs import make_run, row


def test_the_report_is_written_into_the_run_folder_or_to_output(tmp_path, caplog):
    folder = make_run(tmp_path / "run", rows=(row(1),))
    with caplog.at_level("INFO", logger="runner"):
        assert run([f"run={folder}"]) == 0
    assert f"{folder / 'report.html'} (" in caplog.text
    assert run([f"run={folder}"]) == 0, "its own report is replaced"
    run([f"run={folder}", f"output={tmp_path / 'x.html'}"])
    with pytest.raises(OutputError, match="already exists"):
        run([f"run={folder}", f"output={tmp_path / 'x.html'}"])
    with pytest.raises(OutputError, match="can't be written"):
        run([f"run={folder}", f"output={tmp_path / 'no' / 'x.html'}"])


def test_wrong_calls_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}"])
    with pytest.raises(ConfigError, match=r"optimizer\.lr = '1': no such key; report takes run, output"):
        run([f"run={tmp_path}", "optimizer.lr=1"])
