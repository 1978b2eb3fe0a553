"""Every way to a Config; here, where the YAML files stand and which options the groups have. Imports no Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PACKAGE_DIR = Path(__file__).resolve().parents[1]
# In a wheel the YAML ships inside the package; in a checkout it stands beside it.
CONF_DIR = next(path for path in (_PACKAGE_DIR / "conf", _PACKAGE_DIR.parent / "conf") if path.is_dir())


def group_options(group: str, own_folders: Sequence[str | Path] = ()) -> list[str]:
    """The options of a config group that ship with the runner, and those of the user's own config folders."""
    folders = [CONF_DIR, *map(Path, own_folders)]
    return sorted(
        path.stem for folder in folders for path in (folder / group).glob("*.yaml") if not path.stem.startswith("_")
    )
