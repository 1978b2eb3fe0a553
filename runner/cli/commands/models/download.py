"""`python -m runner models download name=NAME@ALIAS output=DIR`: copy a registered version, and check it."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE, OutputError
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_models import ModelsDownloadCall
from runner.tools.registry.resolve import find_version, open_registry
from runner.tools.registry.versions import read_reference


def run(argv: list[str]) -> int:
    """Download a version.

    Raises:
        ConfigError: a value is wrong.
        CheckpointError, RegistryError: there is no such version, or a file differs from what was registered.
        OutputError: the folder exists, or can't be written.
    """
    call = read_own("models download", ModelsDownloadCall, argv)
    output = typed_path(call.output, "output").absolute()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise OutputError(f"{output}: already exists and is never overwritten; remove it, or choose another")
    registry, reference = open_registry(call.registry.uri), read_reference(call.name, "name")
    version = find_version(registry, reference)
    registry.download(reference.name, version, output)
    show(f"downloaded  {reference.name}/{version} to {output}; its files have the registered checksums")
    return EXIT_DONE
