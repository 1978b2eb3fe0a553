"""Distributions that offer models, transforms or losses of their own, as a user's would."""

from __future__ import annotations

from pathlib import Path


def make_package(site: Path, module: str, code: str, *, group: str = "runner.models", **entries: str) -> Path:
    """Put a distribution of one module into a folder that is to be searched for imports.

    Args:
        site: the folder.
        module: name of the module and of the distribution.
        code: of the module.
        group: of the entry points.
        **entries: by the name of an entry point, the function that it stands for, as `module:function`.

    Returns:
        The folder.
    """
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    return site
