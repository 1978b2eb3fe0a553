from __future__ import annotations

import pytest

import runner
from runner.base.errors import ConfigError, UsageError


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["-m"], ["--help"]])
def test_a_flag_of_the_command_line_is_refused(flags):
    with pytest.raises(UsageError, match="takes KEY=VALUE"):
        runner.load_config([*flags, "seed=1"])


def test_a_config_folder_of_ones_own_is_heeded(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 77\n")
    assert runner.load_config(["--config-dir", str(tmp_path), "experiment=mine"]).seed == 77


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "~nosuchuser/run"])
def test_what_is_no_path_is_no_run(name):
    with pytest.raises(ConfigError, match=r"run_dir = .*is no path"):
        runner.load_model(name)


@pytest.mark.parametrize("key", ["num_classes", "num_train", "num_val"])
def test_images_in_memory_have_a_number_that_memory_can_hold(key):
    with pytest.raises(ConfigError, match=rf"data\.{key} = 1000000000000: must be at most"):
        runner.load_config(["data=synthetic", f"data.{key}=1000000000000"])
