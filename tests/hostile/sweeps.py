"""Family of sweep folders of others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.hostile import odd
from tests.hostile.place import Input, Place, Prepare, both, linked, put

_ARGV: tuple[list[Any], ...] = (
    ["-m", "--experimental-rerun", "evil.pickle"],
    ["-m", "hydra.callbacks.x={_target_:os.system,command:'touch @OUT@/pwned'}"],
    ["-m", "+hydra.callbacks.x={_target_:torch.utils.collect_env.run,command:'touch @OUT@/pwned'}"],
    ["-m", "hydra.run={dir:@OUT@/made}"],
    ["-m", "hydra/launcher=basic", "hydra.launcher._target_=os.system"],
    ["-m", "hydra/job_logging=default"],
    ["-m", "--config-dir", "@OUT@"],
    ["-m", "--config-path", "@OUT@"],
    ["-m", "--config-name", "../../evil"],
    ["-m", "experiment=../../evil"],
    ["-m", "output_dir=@OUT@/made"],
    ["-m", "hydra.sweep.subdir=../../../outside/made"],
    ["-m", "dist=slurm", "dist.slurm.setup=['touch @OUT@/pwned']"],
    ["-m", "hydra.sweeper.params={dist: slurm, dist.slurm.setup: '[touch @OUT@/pwned]', seed: '1,2'}"],
    ["-m", "hydra={sweeper: {params: {dist: slurm, dist.slurm.setup: '[touch @OUT@/pwned]', seed: '1,2'}}}"],
    ["-m", "hydra/sweeper=basic", "++hydra.sweeper={params: {dist: slurm, seed: '1,2'}}"],
    ["-m", "sweep.space={dist: {kind: choice, values: [slurm]}, seed: {kind: choice, values: [1, 2]}}"],
    ["-m", "hydra.sweeper.params={dist.nodes: 2, dist.rendezvous: '127.0.0.1:9', seed: '1,2'}"],
    ["-m", "model.weights=DEFAULT", "seed=1,2"],
    ["-m", "hydra.sweeper.params={model.weights: 'DEFAULT,null'}"],
    ["-m", "hydra.sweep={dir: @OUT@/made}", "seed=1,2"],
    ["-m", "hydra={launcher: {_target_: hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher}}"],
    ["-m", "hydra/launcher=submitit_slurm"],
    ["-m", "hydra/launcher=submitit_local"],
    ["-m", "hydra/launcher=joblib"],
    ["-m", "sweep.storage=postgresql://u:p@127.0.0.1:9/x"],
    ["-m", "sweep.storage=sqlite:///@OUT@/made.db"],
    ["--cfg", "all"],
    ["--info"],
    ["--hydra-help"],
    ["-sc", "install=bash"],
    ["predict", "run=x"],
    ["train"],
    [],
    [1, 2],
    ["-m", None],
    ["-m", "a\0b=1"],
    ["-m", "\x1b[2J=1"],
    ["-m", "seed=range(0,100000000)"],
    ["-m", "seed=${oc.env:RUNNER_SECRET}"],
    ["-m", "model=../../evil"],
)


def _sweep(*edits: Prepare) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("sweep")
        place.write("evil.pickle", odd.TEXTS["pickle"])
        for edit in edits:
            edit(place)

    return prepare


_SWEEP_DOORS = (("resume", "run=sweep"), ("report", "run=sweep"), ("runs", "list", "root=."))


_FILES = (
    *(
        "sweep.json",
        "trials/0.json",
        "multirun.yaml",
        "leaderboard.json",
        "leaderboard.csv",
        "best.yaml",
        "journal.log",
    ),
    *("0/run.json", "0/config.yaml"),
)
_PARTS = ("trials", "0", "logs", ".lock", ".leaderboard.lock", "leaderboard.csv", "journal.log", "report.html")


def _odd_sweeps() -> Iterator[tuple[str, Prepare]]:
    """What is odd about a sweep folder, and how it becomes so."""
    for key, value in product(("argv", "cwd", "format", "metrics", "directions", "start"), odd.VALUES):
        yield f"sweep.json {key} = {str(value)[:40]!r}", _with(key, value)
    for file in _FILES:
        for title, spoil in odd.spoilt(f"sweep/{file}").items():
            yield title, both(put(f"sweep/{file}", b"{}\n"), spoil) if title.endswith("cut off") else spoil
    for part, target in product(_PARTS, ("@OUT@/victim", "@OUT@/secret.txt", "@OUT@/nosuch")):
        yield f"sweep/{part} → {target}", linked(f"sweep/{part}", target)


def _with(key: str, value: Any) -> Prepare:
    return odd.edited_json("sweep/sweep.json", lambda values: {**values, key: value})


def table() -> Iterator[Input]:
    """Sweep folders of others."""
    for argv in _ARGV:
        yield Input(f"resume: sweep.json argv = {str(argv)[:80]}", _SWEEP_DOORS[0], _sweep(_with("argv", argv)))
    for title, spoil in _odd_sweeps():
        yield from (Input(f"{door[0]}: {title}", door, _sweep(spoil)) for door in _SWEEP_DOORS)


def grown(rng: random.Random) -> Input:
    """Odd values at random spots of a sweep's JSON."""
    file, seed, door = rng.choice(("sweep.json", "trials/0.json", "0/run.json")), rng.random(), rng.choice(_SWEEP_DOORS)
    edit = odd.edited_json(f"sweep/{file}", lambda values: odd.mutated(values, random.Random(seed))[1])
    return Input(f"{door[0]}: a mutated {file}", door, _sweep(edit))
