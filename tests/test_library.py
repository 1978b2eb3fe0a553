from __future__ import annotations

import pytest

import runner
from runner.errors import UsageError


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["-m"], ["--help"]])
def test_a_flag_of_the_command_line_is_refused(flags):
    with pytest.raises(UsageError, match="takes KEY=VALUE"):
        runner.load_config([*flags, "seed=1"])


def test_a_config_folder_of_ones_own_is_heeded(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 77\n")
    assert runner.load_config(["--config-dir", str(tmp_path), "experiment=mine"]).seed == 77
