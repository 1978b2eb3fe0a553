"""What `models list` and `models show` say of models and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.untrusted import printable
from runner.tools.registry.versions import ModelRegistry, not_registered
from runner.tools.runs.past import describe_metric

_NOTHING = "–"
_SHOWN_METRICS = ("count", "top1", "top5", "loss")


def facts_of_model(registry: ModelRegistry, name: str) -> dict[str, Any]:
    """A model, with its aliases and what is known of its newest version."""
    versions = registry.versions(name)
    newest = registry.read(name, versions[-1]).model_dump(mode="json")
    return {"name": name, "versions": versions, "aliases": dict(registry.aliases(name)), "newest": newest}


def line_of_model(facts: dict[str, Any]) -> list[str]:
    """The cells of a model in a table."""
    newest = facts["newest"]
    aliases = ", ".join(f"{alias}={version}" for alias, version in facts["aliases"].items())
    return [
        facts["name"],
        str(facts["versions"][-1]),
        aliases or _NOTHING,
        newest["architecture"],
        _best(newest),
        _moment(newest["registered"]),
    ]


def versions_of(registry: ModelRegistry, name: str) -> list[dict[str, Any]]:
    """What is known of each version of a model, the newest first.

    Raises:
        RegistryError: there is no such model.
    """
    versions = registry.versions(name)
    if not versions:
        raise not_registered(registry, name, None, versions)
    return [facts_of_version(registry, name, version) for version in reversed(versions)]


def facts_of_version(registry: ModelRegistry, name: str, version: int) -> dict[str, Any]:
    """What is known of a version, with the aliases that name it now."""
    record = registry.read(name, version).model_dump(mode="json")
    return {**record, "aliases": sorted(_naming(registry.aliases(name), version))}


def line_of_version(facts: dict[str, Any]) -> list[str]:
    """The cells of a version in a table."""
    return [
        str(facts["version"]),
        ", ".join(facts["aliases"]) or _NOTHING,
        facts["architecture"],
        _best(facts),
        "/".join(facts["lineage"]["run"].split("/")[-2:]),
        _moment(facts["registered"]),
    ]


def lines_about(facts: dict[str, Any]) -> Iterator[str]:
    """Lines about one version, for people."""
    lineage = facts["lineage"]
    changed = " with uncommitted changes" if lineage["git_dirty"] else ""
    known = {
        "version": f"{facts['name']}/{facts['version']}",
        "aliases": ", ".join(facts["aliases"]) or _NOTHING,
        "registered": _moment(facts["registered"]) + " UTC",
        "model": f"{facts['architecture']}, {facts['num_classes']:,} classes",
        "best": _best(facts),
        **{split: _metrics(found) for split, found in facts["metrics"].items()},
        "run": lineage["run"],
        "names": ", ".join(str(lineage[key]) for key in ("name", "group") if lineage[key]) or _NOTHING,
        "commit": f"{lineage['git_commit']}{changed}" if lineage["git_commit"] else _NOTHING,
        "data": f"{lineage['data']}, fingerprint {lineage['data_fingerprint']}",
    }
    for name, value in known.items():
        yield f"{printable(name):<10}  {printable(value)}"
    for file, registered in facts["files"].items():
        yield f"{'file':<10}  {registered['sha256']}  {registered['bytes']:>11,}  {file}"


def _naming(aliases: Mapping[str, int], version: int) -> Iterator[str]:
    return (alias for alias, named in aliases.items() if named == version)


def _best(facts: dict[str, Any]) -> str:
    best = facts["best"]
    metric, value = best.get("metric"), best.get("value")
    if not isinstance(metric, str) or not isinstance(value, int | float):
        return _NOTHING
    return f"{metric} {describe_metric(metric, value)}"


def _metrics(found: dict[str, Any]) -> str:
    shown = {name: found[name] for name in _SHOWN_METRICS if isinstance(found.get(name), int | float)}
    return ", ".join(
        f"{value:,} images" if name == "count" else f"{name} {describe_metric(name, value)}"
        for name, value in shown.items()
    )


def _moment(text: str) -> str:
    return text.removesuffix("+00:00").replace("T", " ")
