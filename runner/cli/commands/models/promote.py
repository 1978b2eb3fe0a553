"""`python -m runner models promote name=NAME alias=ALIAS [version=N] [if_better_on=DATA metric=top1]`."""

from __future__ import annotations

from runner.base.console import show
from runner.base.errors import EXIT_DONE, NotBetterError
from runner.base.stop import StopRequest
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_models import ModelsPromoteCall
from runner.tools.registry.resolve import find_version, open_registry
from runner.tools.registry.versions import ModelRegistry, Reference, not_registered


def run(argv: list[str]) -> int:
    """Let an alias name another version; with if_better_on only where that is better than the one it names now.

    Raises:
        ConfigError: a value is wrong.
        CheckpointError, RegistryError: there is no such version, or it is damaged.
        InvalidDatasetError: the images can't be used.
        NotBetterError: the version is not better, or not with this confidence; the alias stays.
        StoppedOnRequest: the alias stays.
    """
    call = read_own("models promote", ModelsPromoteCall, argv)
    registry = open_registry(call.registry.uri)
    versions = registry.versions(call.name)
    if not versions:
        raise not_registered(registry, call.name, None, versions)
    version = find_version(registry, Reference(name=call.name, version=call.version or versions[-1]))
    holder = registry.aliases(call.name).get(call.alias)
    if holder == version:
        show(f"{call.name}@{call.alias} is version {version} already")
        return EXIT_DONE
    if call.if_better_on is None:
        registry.set_alias(call.name, call.alias, version)
    else:
        _compare(registry, call, version, holder)
        registry.set_alias(call.name, call.alias, version, holder=holder)
    before = f", was version {holder}" if holder is not None else ""
    show(f"promoted    {call.name}@{call.alias} is version {version}{before}")
    return EXIT_DONE


def _compare(registry: ModelRegistry, call: ModelsPromoteCall, version: int, holder: int | None) -> None:
    """Compare a version with the one that has the alias; raises where it is not better."""
    typed_path(call.if_better_on or "", "if_better_on")
    if holder is None:
        show(f"no version has the alias {call.alias} yet, so there is nothing to compare with")
        return
    packages = registry.package(call.name, version), registry.package(call.name, holder)
    from runner.tools.registry.gate import compare_packages  # noqa: PLC0415 - torch only after all other checks

    with StopRequest() as stop:
        comparison = compare_packages(*packages, call, stop)
    told = f"version {version} against version {holder}, {comparison}"
    if not comparison.is_better:
        raise NotBetterError(f"{call.name}@{call.alias} stays version {holder}: {told}")
    show(f"compared    {told}")
