"""torchvision's weights files, in torch.hub's usual cache."""

from __future__ import annotations

import logging
import math
import re
from http.client import HTTPException
from pathlib import Path

import torch.hub
from torchvision.models import WeightsEnum

from runner.base.errors import InvalidModelError
from runner.base.files import locked

_logger = logging.getLogger("runner")


def cached_path(weights: WeightsEnum) -> Path:
    """Where torch.hub keeps the file of these weights, whether it is there or not."""
    return Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])


def fetch(weights: WeightsEnum, *, may_download: bool = True) -> Path:
    """The file of these weights, downloaded into torch.hub's cache if it is not there yet and may be.

    Of several processes the first one downloads while the others wait, so that eight ranks download once; torch.hub
    writes under a name of its own and renames. A file in the cache is taken as it is; a download must have the SHA-256
    whose beginning stands in its name, as torch.hub demands.

    Raises:
        InvalidModelError: when it may not or can't be downloaded; names the address, the file and the folder.
    """
    path = cached_path(weights)
    if path.exists():
        return path
    if not may_download:
        raise InvalidModelError(
            f"model.weights = {weights.name!r}: they are not in {path.parent}, and a saved config downloads nothing; "
            f"type model.weights={weights.name} to download {weights.url}, or place it there as {path.name}"
        )
    digest = re.search(r"-([a-f0-9]+)\.", path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), wait_seconds=math.inf):
            if path.exists():  # another process has downloaded it meanwhile
                return path
            _logger.info("downloading %s to %s", weights.url, path)
            torch.hub.download_url_to_file(
                weights.url,
                str(path),
                hash_prefix=digest[1] if digest else None,
                progress=False,
            )
    except (OSError, HTTPException, RuntimeError) as error:  # no connection or no room; cut off; another SHA-256
        raise InvalidModelError(
            f"model.weights = {weights.name!r}: {weights.url} can't be downloaded ({error}); "
            f"fetch it on a machine that can and place it as {path.name} in {path.parent}, or give the path of a file"
        ) from error
    return path
