"""How a Config is made; in this module: the folders of the YAML files and the options of groups, without Hydra."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_PACKAGE_DIR = Path(__file__).resolve().parents[1]
# A wheel has conf/ inside the package; a checkout has it beside the package.
CONF_DIR = next(path for path in (_PACKAGE_DIR / "conf", _PACKAGE_DIR.parent / "conf") if path.is_dir())


def conf_of_working_folder() -> Path | None:
    """The folder `conf` of the working folder, as a full path, where it has experiments of the user's own.

    None in the runner's own checkout, whose conf/ is looked in anyway.
    """
    # Unlike Path.is_dir, os.path.isdir is also False where one may not look, or where the working folder was removed.
    if not os.path.isdir("conf/experiment"):  # noqa: PTH112
        return None
    folder = Path("conf").resolve()
    return None if folder == CONF_DIR else folder


def group_options(group: str, own_folders: Sequence[str | Path] = ()) -> list[str]:
    """The options of a config group in conf/ and in the user's config folders."""
    folders = [CONF_DIR, *map(Path, own_folders)]
    paths = (path for folder in folders for path in (folder / group).glob("*.yaml"))
    return sorted({path.stem for path in paths if not path.stem.startswith("_")})
