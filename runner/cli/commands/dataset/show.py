"""`python -m runner dataset show output=FILE.png [overrides]`: draw images beside their augmented versions."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE, ConfigError, Problem
from runner.base.stop import StopRequest
from runner.cli.call import read_call
from runner.config.compose import compose_one
from runner.config.schema.calls.of_datasets import DatasetShowCall


def run(argv: list[str]) -> int:
    """Draw a contact sheet of an experiment's training images.

    Raises:
        ConfigError: what was typed is wrong.
        InvalidDatasetError: the data set can't be opened.
        OutputError: the file exists, or can't be written.
    """
    call, overrides = read_call("dataset show", DatasetShowCall, argv)
    if not call.output.lower().endswith(".png"):
        raise ConfigError([Problem(key="output", value=call.output, has_value=True, message="must end in .png")])
    job = compose_one(overrides)
    if job is None:
        return EXIT_DONE
    with StopRequest() as stop:
        from runner.tools.dataset.show import show_dataset  # noqa: PLC0415 - torch only after the config is checked

        files = show_dataset(job.config, call, stop)
    show(f"{call.output}: {len(files)} images, each as in its file and as in {call.num_samples} epochs of training")
    return EXIT_DONE
