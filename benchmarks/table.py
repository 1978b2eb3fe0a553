"""Writes docs/benchmarks.md from benchmarks/results/: `python benchmarks/table.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A line of the table: what is wanted, and where the figure stands."""

    what: str
    result: str
    """Name of the file in benchmarks/results; empty where no benchmark measures it yet."""
    figure: str
    """Name within its ratios."""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"

    def wanted(self) -> str:
        """The goal in words."""
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return "none" if bound is None else f"{sign} {shown(bound, self.unit)}"

    def verdict(self, value: float | None) -> str:
        """Whether a value reaches the goal; nothing where there is none of either."""
        if value is None or self.at_least == self.at_most:
            return ""
        is_met = (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)
        return "yes" if is_met else "no"


GOALS = (
    Goal(what="the loop's rate, of a bare loop's: ResNet-18 64 px, TensorBoard and metrics on",
         result="overhead_resnet18_64", figure="of_bare_loop", at_least=0.98, unit="%"),
    Goal(what="the same: ResNet-50 224 px", result="overhead_resnet50_224", figure="of_bare_loop", at_least=0.98,
         unit="%"),
    Goal(what="the same: DenseNet-121 224 px", result="overhead_densenet121_224", figure="of_bare_loop", at_least=0.98,
         unit="%"),
    Goal(what="ResNet-18 as above, with its checkpoints: of a bare loop that saves by torch.save",
         result="overhead_resnet18_64", figure="of_saving_loop", unit="%"),
    Goal(what="small JPEGs, decoded in each epoch, 3 epochs, command to exit: wall time, to the best peer's",
         result="trainers_small", figure="wall_to_best_peer", at_most=0.8),
    Goal(what="the same by default, which keeps so few images decoded", result="trainers_small",
         figure="wall_to_best_peer_kept", at_most=0.8),
    Goal(what="crops of 64 px of 500×375 photographs, decoded in each epoch: images/s, to the best peer's",
         result="trainers_photographs", figure="rate_to_best_peer", at_least=1.5),
    Goal(what="the same by default, which keeps so few images decoded", result="trainers_photographs",
         figure="rate_to_best_peer_kept", at_least=1.5),
    Goal(what="serve, ResNet-18 224 px fp32, one client: requests/s, of a bare FastAPI handler", result="serve_load",
         figure="FastAPI_1", at_least=1.0),
    Goal(what="the same with 64 clients", result="serve_load", figure="FastAPI_64", at_least=2.0),
    Goal(what="the same with 64 clients: of LitServe", result="serve_load", figure="LitServe_64"),
    Goal(what="serve, 200,000 requests, one in a hundred hostile: answers lost", result="serve_load_soak",
         figure="lost", at_most=0, unit=""),
    Goal(what="the same: wrong answers", result="serve_load_soak", figure="wrong", at_most=0, unit=""),
    Goal(what="serve, 50 other versions under load: answers lost", result="serve_load_swaps", figure="lost", at_most=0,
         unit=""),
    Goal(what="serve, beside 10,000 clients that never finish their request: answers lost", result="serve_load_slow",
         figure="lost", at_most=0, unit=""),
    Goal(what="an epoch of ResNet-18 64 px with tracker=mlflow, whose server runs on the same cores: of one without",
         result="tracker_overhead", figure="epoch_seconds", at_most=1.01),
    Goal(what="loader alone, photographs, per core: to PIL + float + normalise", result="loader",
         figure="to_classic_path", at_least=1.8),
    Goal(what="loader alone, packed images: to PIL + float + normalise", result="loader",
         figure="packed_to_classic_path", at_least=5),
    Goal(what="digits, cached: to the loader image by image", result="loader", figure="cached_to_per_sample",
         at_least=5),
    Goal(what="10 epochs: outside of steps and evaluation, start-up apart", result="overhead_resnet18_64",
         figure="outside_fraction", at_most=0.02, unit="%"),
    Goal(what="`--help`", result="start_up", figure="help_seconds", at_most=0.6, unit="s"),
    Goal(what="a config error", result="start_up", figure="config_error_seconds", at_most=0.6, unit="s"),
    Goal(what="first step of the default run, to a bare script's", result="start_up", figure="first_step_to_bare_loop",
         at_most=1.2),
    Goal(what="evaluation, to the training rate", result="overhead_resnet18_64", figure="evaluation_to_training",
         at_least=2.5),
    Goal(what="gloo, 2 ranks × 1 thread, batch 64: to two runs that exchange nothing", result="gloo_efficiency",
         figure="batch_64", at_least=0.9, unit="%"),
    Goal(what="gloo, 2 ranks × 1 thread, batch 16: to two runs that exchange nothing", result="gloo_efficiency",
         figure="batch_16", at_least=0.8, unit="%"),
    Goal(what="20 epochs over 20,000 files, read in each, 4 loader processes: memory (PSS), to that of epoch 2",
         result="memory", figure="last_epoch_to_epoch_2", at_most=1.01),
    Goal(what="the same by default, which keeps so small images decoded", result="memory",
         figure="last_epoch_to_epoch_2_kept", at_most=1.01),
    Goal(what="98% of the digits, ResNet-18, from the command on: seconds, to timm's train.py with its defaults",
         result="time_to_accuracy", figure="digits_to_timm, its defaults", at_most=0.5),
    Goal(what="the same, to timm's train.py with our recipe", result="time_to_accuracy",
         figure="digits_to_timm, our recipe"),
    Goal(what="the same, to a loop written by hand with our recipe", result="time_to_accuracy",
         figure="digits_to_by hand, our recipe"),
    Goal(what="95% of ten signs of the hand, photographs: seconds, to timm's train.py with its defaults",
         result="time_to_accuracy", figure="from_scratch_to_timm, its defaults", at_most=0.5),
    Goal(what="the same, to timm's train.py with our recipe", result="time_to_accuracy",
         figure="from_scratch_to_timm, our recipe"),
    Goal(what="the same, to a loop written by hand with our recipe", result="time_to_accuracy",
         figure="from_scratch_to_by hand, our recipe"),
    Goal(what="GPU, ResNet-50 224 px bf16, synthetic", result="gpu", figure="images_per_second", at_least=6000,
         unit="images/s"),
    Goal(what="GPU, the same: to the best mode of timm's benchmark.py", result="gpu", figure="to_best_peer",
         at_least=1.2),
    Goal(what="GPU, the same: of a bare loop", result="gpu", figure="of_bare_loop", at_least=0.99, unit="%"),
    Goal(what="GPU, the same: waits for the device between two reports", result="gpu", figure="waits_for_the_device",
         at_most=0, unit=""),
    Goal(what="GPU, JPEG photographs, 16 cores: of the synthetic rate", result="gpu", figure="photographs_to_synthetic",
         at_least=0.9, unit="%"),
    Goal(what="GPU, the same: to timm's train.py", result="gpu", figure="photographs_to_timm", at_least=1.4),
)  # fmt: skip

HEAD = """\
# Benchmarks

Generated by `make bench-table` from `benchmarks/results/`; do not edit. `make bench` measures on a CPU,
`make bench-gpu` on a GPU; each script in `benchmarks/` runs by itself and says what it compares. Sides run in turns
(A B B A …), at least three times each; figures are medians. Figures of other machines, or of a busy one, differ.

"""


def shown(value: float, unit: str) -> str:
    """A figure for people."""
    if unit == "%":
        return f"{value:.1%}"
    number = f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of these results, by name of their file."""
    sections = (_goals, _sides, _accuracy, _stall, _refusals, _searches, _kills, _families)
    return HEAD + "\n".join(line for section in sections for line in section(results))


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results that are recorded, by name."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def value_of(goal: Goal, results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The figure of a goal; None where it was not measured."""
    value: float | None = results.get(goal.result, {}).get("ratios", {}).get(goal.figure)
    return value


def _goals(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    def rows() -> Iterator[tuple[str, ...]]:
        for goal in GOALS:
            value = value_of(goal, results)
            figure = NOT_MEASURED if value is None else shown(value, goal.unit)
            yield goal.what, goal.wanted(), figure, goal.verdict(value)

    yield from _table(("what", "goal", "measured", "met"), rows())


def _sides(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, result in results.items():
        if "sides" not in result:
            continue
        machine = result["machine"]
        features = f" ({', '.join(machine['features'])})" if machine["features"] else ""
        yield f"## {name}\n"
        yield f"{result['work']}. {result['date'][:10]}, {machine['processor']}{features}, {machine['cores']} cores, "
        yield f"torch {machine['versions']['torch']}.\n"
        yield from _table(("side", "figure", "median", "lowest", "highest", "runs", "load before"), _side_rows(result))
        for side, measured in result["sides"].items():
            yield f"- {side}: `{measured['command']}`"
        yield ""


def _side_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for side, measured in result["sides"].items():
        loads = f"{min(measured['loads']):.1f} to {max(measured['loads']):.1f}"
        for figure, values in measured["figures"].items():
            cells = (f"{values[key]:,.4g}" for key in ("median", "lowest", "highest"))
            yield (side, figure.replace("_", " "), *cells, str(len(values["values"])), loads)
    for side, reason in result["not_measured"].items():
        yield (side, "", f"{NOT_MEASURED}: {reason}", "", "", "", "")


def _accuracy(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    result = results.get("digits_seeds")
    if result is None:
        return
    yield "## digits_seeds\n"
    yield f"`{result['command']}`, {len(result['runs'])} seeds: top-1 on the digits.\n"
    kinds = {"best epoch": result["best_top1"], "last epoch": result["last_top1"]}
    yield from _table(
        ("", "mean", "standard deviation", "lowest"),
        (
            (name, f"{kind['mean']:.2%}", f"{100 * kind['standard_deviation']:.2f} points", f"{kind['lowest']:.2%}")
            for name, kind in kinds.items()
        ),
    )


def _stall(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    result = results.get("checkpoint_stall")
    if result is None:
        return
    yield "## checkpoint_stall\n"
    cores = result["cores"]
    yield f"What a checkpoint of ResNet-50 with SGD costs the training, which computes on all {cores} cores.\n"
    labels = {
        "median_step_seconds": "a step",
        "median_submit_seconds": "handing over a checkpoint",
        "median_lost_seconds": "steps take longer while it is written in the background, in all",
        "median_waited_seconds": "writing it, if the training waited",
    }
    yield from _table(("what", "median seconds"), ((label, f"{result[key]:.3f}") for key, label in labels.items()))


def _refusals(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    result = results.get("refusals")
    if result is None:
        return
    yield "## refusals\n"
    yield "Seconds from a command to its refusal.\n"
    yield from _table(
        ("mistake", "exit code", "median seconds"),
        ((name, str(case["exit_code"]), f"{case['median_seconds']:.2f}") for name, case in result["cases"].items()),
    )


def _searches(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, result in results.items():
        if "searches" not in result:
            continue
        machine = result["machine"]
        yield f"## {name}\n"
        yield f"{result['work']}. {result['date'][:10]}, {machine['processor']}, {machine['cores']} cores, "
        yield f"torch {machine['versions']['torch']}; load before {result['load']}.\n"
        yield from _table(
            ("search", "trials", "epochs", "seconds", "best top-1"),
            (
                (
                    search,
                    ", ".join(f"{number} {status}" for status, number in found["status"].items()),
                    f"{found['epochs']}",
                    f"{found['seconds']:,.0f}",
                    f"{found['best']:.2%}",
                )
                for search, found in result["searches"].items()
            ),
        )
        for search, found in result["searches"].items():
            yield f"- {search}: `{found['command']}`"
        yield ""


def _kills(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    result = results.get("sweep_kills")
    if result is None:
        return
    statuses = result["status"].values()
    counts = ", ".join(f"{list(statuses).count(status)} {status}" for status in dict.fromkeys(statuses))
    killed = ", ".join(str(kill["finished_trials_then"]) for kill in result["kills"])
    again = result["finished_trials_that_ran_again"]
    yield "## sweep_kills\n"
    yield f"A grid of {len(result['status'])} trials on the digits, killed by SIGKILL {len(result['kills'])} times and"
    yield f"typed again, when {killed} trials had finished. On the leaderboard, each once: {counts}."
    yield f"Finished trials that ran again: {', '.join(again) if again else 'none'}.\n"
    yield from _table(("trial", "how it failed"), iter(result["errors"].items()))


def _families(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    result = results.get("families")
    if result is None:
        return
    steps = ("train", "resumed", "reloaded", "exported")
    yield "## families\n"
    yield "Architectures, timm's where nothing else is said: trained 3 steps; stopped after 2, resumed to the same"
    yield "bits; packaged and loaded with the logits of the library's own builder; exported to ONNX. Of mvitv2_tiny and"
    yield "tiny_vit_5m_224 a first try had other bits after the resume, and so may two runs that nothing stops: some of"
    yield "torch's operations add in the order in which threads arrive, unless trainer.deterministic=true. FastViT's"
    yield "backward pass in channels_last crashes in torch 2.15 on a CPU, in a script without this runner too."
    yield f"{result['date'][:10]}, timm {result['timm']}.\n"
    yield from _table(
        ("architecture", "px", "trained", "resumed", "reloaded", "exported"),
        (
            (
                name,
                str(found.get("image_size", "")),
                *(_outcome(found.get(step, found.get("failed"))) for step in steps),
            )
            for name, found in result["architectures"].items()
        ),
    )


def _outcome(found: object) -> str:
    return {True: "yes", False: "no"}[found] if isinstance(found, bool) else " ".join(str(found).split())


def main() -> None:
    PAGE.write_text(page(read_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
