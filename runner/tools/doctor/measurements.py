"""Findings of a short training: memory, speed, the bottleneck, the gain of torch.compile, the time of the whole run."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from runner.base.errors import DeviceError, RunnerError, StoppedOnRequest
from runner.config.schema.calls.of_experiments import DoctorRules
from runner.data.cache.memory import available_memory
from runner.data.loader.order import TrainPlan
from runner.data.loader.prepare import num_decoding_threads
from runner.dist.device import choose_num_threads
from runner.launch.plan import LaunchPlan
from runner.tools.doctor.findings import Finding, error_findings, gigabytes
from runner.tools.doctor.short_training import Bench, Pace, load_briefly, train_briefly, without_data
from runner.tools.doctor.system import Load, check_disk
from runner.training.device_errors import is_out_of_memory, nondeterminism_error

_MOST_STEPS = 50
_NOTABLE_WAIT = 0.1  # share of a step that is spent waiting for data
USABLE_MEMORY = 0.9
_GAIN_WORTH_COMPILING = 1.03
_ONEDNN_OUT_OF_MEMORY = "could not create a primitive"  # oneDNN's message when memory runs out, and in rarer cases


@dataclass(frozen=True, kw_only=True)
class Paces:
    """The speed of the whole training, of the device alone, and of the loader alone."""

    whole: Pace
    device: Pace
    loader_images_per_second: float


def measure(bench: Bench, plan: LaunchPlan, load: Load, rules: DoctorRules) -> list[Finding]:
    """Train briefly, and turn the measurements into findings."""
    shortage: str | None = None
    try:
        first = train_briefly(bench, 1)
        paces = _measure(bench, first, rules.seconds)
        compiled = [_try_compile(bench, paces.device, plan)] if rules.compile else []
    except StoppedOnRequest:
        raise
    except RunnerError as error:
        return error_findings("training", error)
    except RuntimeError as error:
        named = nondeterminism_error(error, bench.device)
        if named is not None:
            return error_findings("training", named)
        if not is_out_of_memory(error):
            raise
        shortage = str(error)
    if shortage is not None:  # not in the except block: the error's frames keep the memory in use
        return [_too_large(bench, shortage)]
    return [
        _memory(bench, paces.whole, load),
        _pace(bench, paces, load),
        *compiled,
        _whole_run(bench, paces.whole, plan),
        check_disk(Path(bench.config.output_dir), _run_bytes(bench, paces.whole)),
    ]


def _measure(bench: Bench, first: Pace, seconds: float) -> Paces:
    num_steps = max(1, min(_MOST_STEPS, int(seconds / 2 / first.step_seconds)))
    return Paces(
        whole=first if num_steps == 1 else train_briefly(bench, num_steps),
        device=train_briefly(without_data(bench), num_steps),
        loader_images_per_second=load_briefly(bench, num_steps),
    )


def _memory(bench: Bench, pace: Pace, load: Load) -> Finding:
    if bench.device.type == "cuda":
        return _gpu_memory(bench, pace)
    total = load.num_processes * pace.peak_bytes  # loader processes share most of their memory with it
    available = available_memory()
    has = "" if available is None else f"; {gigabytes(available)} available"
    advice = []
    if available is not None and total > available:
        advice.append(
            f"all processes together may need {gigabytes(total)}, and the system kills what takes too much: fewer "
            f"processes, or data.batch_size={max(1, bench.config.data.fixed_batch_size // 2)}"
        )
    return Finding(
        topic="memory",
        found=f"{gigabytes(pace.peak_bytes)} at peak in each training process{has}",
        values={"peak_bytes": pace.peak_bytes, "available_bytes": available},
        advice=tuple(advice),
    )


def _gpu_memory(bench: Bench, pace: Pace) -> Finding:
    free, total = torch.cuda.mem_get_info(bench.device)
    batch_size = bench.config.data.fixed_batch_size
    largest = largest_batch(pace, batch_size, free + torch.cuda.memory_reserved(bench.device))
    advice = []
    if largest >= 2 * batch_size:
        advice.append(
            f"data.batch_size={largest} would fit too; larger batches often train faster per image, and need "
            "another optimizer.lr"
        )
    return Finding(
        topic="memory",
        found=f"{gigabytes(pace.peak_bytes)} of {gigabytes(total)} at peak with data.batch_size={batch_size}",
        values={"peak_bytes": pace.peak_bytes, "total_bytes": total, "largest_batch_size": largest},
        advice=tuple(advice),
    )


def largest_batch(pace: Pace, batch_size: int, usable_bytes: int) -> int:
    """The multiple of 8 as a batch size that nearly fills this memory, as activations grow with the batch."""
    per_image = max(pace.peak_bytes - pace.static_bytes, 1) / batch_size
    fitting = int((USABLE_MEMORY * usable_bytes - pace.static_bytes) / per_image)
    return max(fitting // 8 * 8, 0)


def _too_large(bench: Bench, reason: str) -> Finding:
    """Halve the batch size until a step fits into memory."""
    asked = bench.config.data.fixed_batch_size
    batch_size = asked // 2
    while batch_size and not _fits(bench, batch_size):
        batch_size //= 2
    if batch_size:
        advice = f"data.batch_size={batch_size} fits; with trainer.accumulate_steps={asked // batch_size} times as many"
        advice += " batches per step it is nearly the same training"
    else:
        advice = "not even one image fits; take smaller images or a smaller model"
    error = DeviceError(f"out of memory on {bench.device} with data.batch_size = {asked}: {advice} ({reason})")
    return Finding(topic="memory", found=str(error), error=error, values={"largest_batch_size": batch_size})


def _fits(bench: Bench, batch_size: int) -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    data = bench.config.data.model_copy(update={"batch_size": batch_size})
    try:
        train_briefly(replace(bench, config=bench.config.model_copy(update={"data": data})), 1)
    except RuntimeError as error:
        if not is_out_of_memory(error) and _ONEDNN_OUT_OF_MEMORY not in str(error):
            raise
        return False
    return True


def _pace(bench: Bench, paces: Paces, load: Load) -> Finding:
    whole, loader = paces.whole, paces.loader_images_per_second
    device = paces.device.images_per_second
    share = whole.data_wait_seconds / whole.step_seconds
    slower = "data" if loader < device else "compute"
    found = (
        f"{whole.images_per_second:,.0f} images/s in each process; loader alone {loader:,.0f}, {bench.device.type} "
        f"alone {device:,.0f}: {slower} is the slower side; {share:.0%} of a step is spent waiting for data"
    )
    values = {
        "images_per_second": whole.images_per_second,
        "loader_images_per_second": loader,
        "device_images_per_second": device,
        "evaluation_images_per_second": whole.evaluation_images_per_second,
        "step_seconds": whole.step_seconds,
        "data_wait_seconds": whole.data_wait_seconds,
        "first_steps_seconds": whole.first_steps_seconds,
        "num_steps": whole.num_steps,
        "bottleneck": slower,
    }
    advice = _advice_for_data(load, loader, device) if share > _NOTABLE_WAIT else None
    return Finding(topic="pace", found=found, values=values, advice=() if advice is None else (advice,))


def _advice_for_data(load: Load, loader: float, device: float) -> str:
    """Advise more loader processes if cores are free, else less work per image."""
    free = int(cpu_count()) // load.num_processes - load.num_threads - load.num_workers
    if free > 0:
        num_loading = load.num_workers or num_decoding_threads(choose_num_threads(load.num_processes))
        wanted = math.ceil(num_loading * device / loader)
        return f"cores are free for more loader processes: data.workers={min(wanted, load.num_workers + free)}"
    return "all cores are at work: images that are stored at about the size they are trained at decode faster"


def _try_compile(bench: Bench, plain: Pace, plan: LaunchPlan) -> Finding:
    """Whether torch.compile saves time over the whole run, measured on images in memory."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 - takes seconds

    num_steps = plain.num_steps
    other = not bench.config.trainer.compile
    toggled = bench.config.model_copy(update={"trainer": bench.config.trainer.model_copy(update={"compile": other})})
    try:
        pace = train_briefly(without_data(replace(bench, config=toggled)), num_steps)
    except TorchDynamoException as error:
        reason = str(error).strip().splitlines()[0]
        return Finding(topic="compile", found=f"trainer.compile does not work here: {reason}", values={"pays": False})
    compiled, eager = (pace, plain) if other else (plain, pace)
    gain = compiled.images_per_second / eager.images_per_second
    start_up = max(compiled.first_steps_seconds - num_steps * compiled.step_seconds, 0.0)
    saved = _num_steps(bench, plan) * (eager.step_seconds - compiled.step_seconds)
    pays = gain > _GAIN_WORTH_COMPILING and saved > start_up
    advice = [] if pays == bench.config.trainer.compile else [f"trainer.compile={str(pays).lower()}"]
    result = "pays" if pays else "does not pay"
    return Finding(
        topic="compile",
        found=f"{gain:.2f} times as fast after {start_up:.0f} seconds of compiling: {result}",
        values={"speed_up": gain, "compile_seconds": start_up, "pays": pays},
        advice=tuple(advice),
    )


def _steps_per_epoch(bench: Bench, plan: LaunchPlan) -> int:
    data = bench.config.data
    epoch = TrainPlan(
        num_samples=len(bench.splits.train),
        batch_size=data.fixed_batch_size,
        world_size=plan.world_size,
        last_batch=data.last_batch,
    )
    return -(-epoch.batches_per_epoch // bench.config.trainer.accumulate_steps)


def _num_steps(bench: Bench, plan: LaunchPlan) -> int:
    trainer = bench.config.trainer
    steps = trainer.epochs * _steps_per_epoch(bench, plan)
    return steps if trainer.max_steps is None else min(steps, trainer.max_steps)


def _whole_run(bench: Bench, pace: Pace, plan: LaunchPlan) -> Finding:
    trainer = bench.config.trainer
    num_steps = _num_steps(bench, plan)
    num_epochs = math.ceil(num_steps / _steps_per_epoch(bench, plan))
    num_scored = len(bench.splits.val) * (1 if trainer.ema_decay is None else 2)
    evaluation = num_epochs * num_scored / plan.world_size / pace.evaluation_images_per_second
    training = num_steps * pace.step_seconds
    found = (
        f"about {_duration(training + evaluation)} for {num_epochs} epochs: {_duration(training)} of training "
        f"({num_steps:,} steps), {_duration(evaluation)} of evaluation"
    )
    found += "; the exchange of gradients is not measured" if plan.world_size > 1 else ""
    found += f"; trainer.patience={trainer.patience} may end it earlier" if trainer.patience is not None else ""
    values = {"training_seconds": training, "evaluation_seconds": evaluation, "num_steps": num_steps}
    return Finding(topic="whole run", found=found, values=values)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"


def _run_bytes(bench: Bench, pace: Pace) -> int:
    # The newest checkpoints, the best one, the one that is being written; and the packaged model.
    return (bench.config.trainer.keep + 2) * pace.checkpoint_bytes + pace.model_bytes
