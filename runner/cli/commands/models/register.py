"""`python -m runner models register run=DIR name=NAME [alias=ALIAS]`: a run's model becomes the next version."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_models import ModelsRegisterCall
from runner.tools.registry.register import register
from runner.tools.registry.resolve import open_registry


def run(argv: list[str]) -> int:
    """Register the model of a completed run.

    Raises:
        ConfigError: a value is wrong.
        CheckpointError: the folder is no run folder, or its package is damaged.
        RegistryError: the run is not completed, or the registry is damaged.
        OutputError: the registry can't be written.
    """
    call = read_own("models register", ModelsRegisterCall, argv)
    registry = open_registry(call.registry.uri)
    version = register(registry, typed_path(call.run, "run").resolve(), call.name)
    show(f"registered  {call.name}/{version} in {registry.place}")
    if call.alias is not None:
        registry.set_alias(call.name, call.alias, version)
        show(f"alias       {call.name}@{call.alias} is version {version}")
    return EXIT_DONE
