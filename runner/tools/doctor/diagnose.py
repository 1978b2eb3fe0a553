"""The checks of `doctor`, in the order in which a run needs what they check."""

from __future__ import annotations

from pathlib import Path

import torch

from runner.base.errors import RunnerError
from runner.config.schema import Config
from runner.config.schema.calls.of_experiments import DoctorRules
from runner.data.loader.workers import resolve_workers
from runner.dist.device import choose_num_threads, choose_precision
from runner.launch.preflight import Ready, preflight
from runner.tools.doctor.batch_size import settle_batch_size
from runner.tools.doctor.findings import Finding, Report, error_findings
from runner.tools.doctor.hardware import check_devices, check_precision, check_versions
from runner.tools.doctor.measurements import measure
from runner.tools.doctor.short_training import Bench
from runner.tools.doctor.system import (
    Load,
    check_cores,
    check_disk,
    check_open_files,
    check_rendezvous,
    check_shared_memory,
)


def diagnose(config: Config, rules: DoctorRules) -> Report:
    """Check config, data and machine; if nothing is wrong, also train briefly.

    Args:
        config: complete and checked.
        rules: whether and how long to measure.
    """
    findings: list[Finding] = []
    ready: Ready | None = None
    try:
        ready = preflight(config)
        if rules.measure:
            ready = settle_batch_size(ready)
        findings.append(_experiment(ready))
    except RunnerError as error:
        findings += error_findings("experiment", error)
    if ready is not None and ready.plan.mode == "submitted":
        advice = "ask there: srun python -m runner doctor dist=default with the same overrides, within an allocation"
        elsewhere = Finding(topic="machine", found="devices and pace are those of SLURM's nodes", advice=(advice,))
        return Report(findings=(*findings, elsewhere, check_disk(Path(config.output_dir), None), check_versions()))
    machine, load, device = _machine(config if ready is None else ready.config, ready)
    findings += machine
    is_fit = ready is not None and not Report(findings=tuple(findings)).errors
    if ready is None or device is None or not is_fit or not rules.measure:
        return Report(findings=(*findings, check_disk(Path(config.output_dir), None), check_versions()))
    bench = Bench(
        config=ready.config,
        splits=ready.splits,
        device=device,
        precision=choose_precision(config.trainer, device),
        num_processes=load.num_processes,
    )
    return Report(findings=(*findings, *measure(bench, ready.plan, load, rules), check_versions()))


def _experiment(ready: Ready) -> Finding:
    config, splits, plan = ready.config, ready.splits, ready.plan
    found = (
        f"{config.model.name} on {config.data.source}: {len(splits.train):,} training and {len(splits.val):,} "
        f"validation images, {len(splits.classes)} classes, batches of {config.data.batch_size}; {plan.reason}"
    )
    values = {
        "model": config.model.name,
        "num_train": len(splits.train),
        "num_val": len(splits.val),
        "num_classes": len(splits.classes),
        "batch_size": config.data.batch_size,
        "world_size": plan.world_size,
        "mode": plan.mode,
    }
    return Finding(topic="experiment", found=found, values=values)


def _machine(config: Config, ready: Ready | None) -> tuple[list[Finding], Load, torch.device | None]:
    asked = config.dist.procs_per_node
    num_processes = ready.plan.procs_per_node if ready is not None else asked if isinstance(asked, int) else 1
    device_finding, device = check_devices(config.trainer, num_processes)
    kind = "cpu" if device is None else device.type
    load = Load(
        num_processes=num_processes,
        num_threads=choose_num_threads(num_processes) if kind == "cpu" else 1,
        num_workers=resolve_workers(config.data.workers, kind, num_processes),
    )
    findings = [
        device_finding,
        *([] if device is None else [check_precision(config.trainer, device)]),
        check_cores(load, computes=kind == "cpu"),
        check_shared_memory(config.data, load),
        check_open_files(load),
        check_rendezvous(config.dist),
    ]
    return findings, load, device
