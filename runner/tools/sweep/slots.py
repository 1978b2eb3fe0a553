"""How many trials at once, and which GPUs and how many threads each of them gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joblib import cpu_count  # type: ignore[import-untyped]

from runner.base.console import LOGGER
from runner.base.errors import LaunchError
from runner.config.schema import Config
from runner.launch.plan import count_gpus

# Each imports torch and looks at the data: more at once would be too much for a login node, and no faster.
_MOST_SUBMITTING = 4


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A share of this machine that one trial at a time has."""

    environment: Mapping[str, str]
    """Variables of its processes besides those of the sweep."""


def slots_for(
    config: Config,
    num_trials: int,
    *,
    environ: Mapping[str, str] = os.environ,
    num_gpus: int | None = None,
    num_cores: int | None = None,
) -> list[Slot]:
    """One slot for each trial that runs at the same time.

    Args:
        config: of a trial.
        num_trials: more slots than trials are of no use.
        environ: variables of the sweep.
        num_gpus: GPUs that the sweep may use; by default those that torch sees, unless the trial is to use the CPU.
        num_cores: cores that it may use; by default what affinity and the limits of a container leave.

    Raises:
        LaunchError: when sweep.parallel asks for more than there are GPUs.
    """
    if config.dist.launcher == "submitted":
        submitting = _MOST_SUBMITTING if config.sweep.parallel == "auto" else config.sweep.parallel
        return [Slot(environment={})] * min(submitting, num_trials)
    if num_gpus is None:
        num_gpus = 0 if config.trainer.device in ("cpu", "mps") else count_gpus()
    cores = int(cpu_count() if num_cores is None else num_cores)
    procs = 1 if config.dist.procs_per_node == "auto" else config.dist.procs_per_node
    threads = int(environ.get("OMP_NUM_THREADS", "0") or 0)
    if config.sweep.parallel == "auto":
        most = num_gpus // procs if num_gpus else cores // (procs * max(threads, 1))
        parallel = max(1, min(most, num_trials))
    else:
        parallel = min(config.sweep.parallel, num_trials)
        if not num_gpus and parallel * procs > cores:
            LOGGER.warning("%d trials of %d processes at once share %d cores (sweep.parallel)", parallel, procs, cores)
    if num_gpus and parallel * procs > num_gpus:
        raise LaunchError(
            f"sweep.parallel = {parallel} trials of {procs} processes need {parallel * procs} GPUs, but there are "
            f"{num_gpus}; set sweep.parallel={max(1, num_gpus // procs)} or auto"
        )
    share = {"LOKY_MAX_CPU_COUNT": str(max(1, cores // parallel))}  # asked by joblib, which counts the loaders' cores
    if not threads and parallel > 1:
        is_all_gpus = config.dist.procs_per_node == "auto" and num_gpus > 0
        num_processes = num_gpus // parallel if is_all_gpus else procs
        share["OMP_NUM_THREADS"] = str(max(1, cores // parallel // num_processes))
    gpus = _split(_visible(environ, num_gpus), parallel)
    return [Slot(environment={**share, **({"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {})}) for own in gpus]


def _visible(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """Names of the GPUs, as CUDA knows them: a container or a scheduler may have left only some of them."""
    given = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:num_gpus] if given else [str(number) for number in range(num_gpus)]


def _split(names: Sequence[str], num_shares: int) -> list[Sequence[str]]:
    size = len(names) // num_shares
    return [names[number * size : (number + 1) * size] for number in range(num_shares)]
