"""What is installed where a run is made: packages, versions, the name of the machine."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import socket


def installed_packages() -> str:
    """One `name==version` per line, sorted."""
    # Each access to `distribution.metadata` reads the file again.
    all_metadata = [distribution.metadata for distribution in importlib.metadata.distributions()]
    found = {f"{metadata['Name']}=={metadata['Version']}" for metadata in all_metadata if metadata["Name"]}
    return "\n".join(sorted(found, key=str.lower)) + "\n"


def local_packages() -> dict[str, str]:
    """Installed packages that no index has in this version, by name, each with where it came from (PEP 610).

    Without addresses and paths, which may hold a password or the name of a user.
    """
    found = {}
    for distribution in importlib.metadata.distributions():
        text, name = distribution.read_text("direct_url.json"), distribution.name
        if text is None or not name:
            continue
        try:
            origin = json.loads(text)
        except ValueError:
            origin = {}
        if (commit := origin.get("vcs_info", {}).get("commit_id")) is not None:
            found[name] = f"commit {commit}"
        elif "dir_info" in origin:
            found[name] = "editable folder" if origin["dir_info"].get("editable") else "folder"
        else:
            found[name] = "archive"
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    packages = ("runner", "torch", "torchvision", "numpy", "pillow", "simplejpeg", "hydra-core")
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def host() -> str:
    """Name of this machine."""
    return socket.gethostname()
