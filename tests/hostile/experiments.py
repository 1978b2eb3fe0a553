"""Family of experiments: YAML files in the conf/ of the working folder, and what else lies there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import yaml

from tests.hostile import odd
from tests.hostile.command_lines import SMALL
from tests.hostile.place import Input, Prepare

_HEAD = "# @package _global_\n"
_RUN = "_target_: torch.utils.collect_env.run, command: 'touch @OUT@/pwned'"
_FILE = "{class: logging.FileHandler, filename: @OUT@/made}"
_LOGGING = "version: 1, root: {handlers: [x]}, handlers"
HYDRA = (
    f"callbacks: {{x: {{{_RUN}}}}}",
    "callbacks: {x: {_target_: os.system, command: 'touch @OUT@/pwned'}}",
    "callbacks: {x: {_target_: subprocess.Popen, args: [touch, '@OUT@/pwned']}}",
    'callbacks: {x: {_target_: builtins.exec, _args_: [\'open("@OUT@/pwned","w")\']}}',
    "callbacks: {x: {_target_: builtins.eval, _args_: ['1']}}",
    "callbacks: {x: {_target_: joblib.load, filename: evil.pickle}}",
    "callbacks: {x: {_target_: torch.load, f: evil.pickle, weights_only: false}}",
    "callbacks: {x: {_target_: numpy.load, file: evil.pickle, allow_pickle: true}}",
    "callbacks: {x: {_target_: torch.hub.load, repo_or_dir: '@IN@', model: x, source: local}}",
    "callbacks: {x: {_target_: pathlib.Path.write_text, _args_: ['@OUT@/made', x]}}",
    "callbacks: {x: {_target_: urllib.request.urlopen, url: 'http://127.0.0.1:9/'}}",
    "callbacks: {x: {_target_: hydra.utils.get_object, path: evil.x}}",
    "callbacks: {x: {_target_: hydra.utils.instantiate, config: {_target_: os.getcwd}}}",
    "callbacks: {x: {_target_: pty.spawn, argv: sh}}",
    "callbacks: {x: {_partial_: true, _target_: os.system}}",
    "callbacks: {x: null}",
    "callbacks: []",
    "callbacks: {log: {_target_: hydra.experimental.callbacks.LogJobReturnCallback}}",
    "callbacks: {p: {_target_: hydra.experimental.callbacks.PickleJobInfoCallback}}",
    f"job_logging: {{{_LOGGING}: {{x: {{'()': os.system, command: 'touch @OUT@/pwned'}}}}}}",
    f"job_logging: {{{_LOGGING}: {{x: {_FILE}}}}}",
    f"hydra_logging: {{{_LOGGING}: {{x: {_FILE}}}}}",
    f"job_logging: {{{_LOGGING}: {{x: {{class: logging.handlers.SocketHandler, host: 127.0.0.1, port: 9}}}}}}",
    f"job_logging: {{{_LOGGING}: {{x: {{class: logging.handlers.HTTPHandler, host: '127.0.0.1:9', url: /}}}}}}",
    "job_logging: {version: 1, formatters: {f: {'()': 'subprocess.Popen', args: [touch, '@OUT@/pwned']}}}",
    "job_logging: {version: 1, filters: {f: {'()': 'ext://os.system', command: 'touch @OUT@/pwned'}}}",
    "job_logging: null",
    "job_logging: 7",
    "run: {dir: '@OUT@/made'}",
    "run: {dir: '../outside/made'}",
    "run: {dir: '${oc.env:HOME}/x'}",
    "output_subdir: '@OUT@/made'",
    "sweep: {dir: '@OUT@/made', subdir: x}",
    "sweep: {subdir: '../../../outside/made'}",
    "job: {env_set: {GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: core.fsmonitor, GIT_CONFIG_VALUE_0: id}}",
    "job: {env_set: {LD_PRELOAD: '@OUT@/evil.so'}}",
    "job: {env_set: {PYTHONPATH: '@OUT@'}}",
    "job: {env_copy: [PATH]}",
    "job: {chdir: true}",
    "job: {name: ../../x}",
    "job: {config: {override_dirname: {kv_sep: /}}}",
    "mode: MULTIRUN",
    "mode: RUN",
    f"launcher: {{{_RUN}}}",
    f"sweeper: {{{_RUN}}}",
    "launcher: {_target_: os.system}",
    "sweeper: {params: {optimizer.lr: '0.1,0.2'}}",
    "searchpath: ['file://@OUT@']",
    "searchpath: ['pkg://os']",
    "searchpath: ['http://127.0.0.1:9/']",
    "runtime: {output_dir: '@OUT@/made', cwd: '@OUT@'}",
    "overrides: {task: ['seed=2'], hydra: []}",
    "verbose: true",
    "verbose: [root]",
    "help: {template: '${oc.env:RUNNER_SECRET}'}",
    "nosuch: 1",
    "{}",
    "null",
    "7",
    "[a]",
)
DEFAULTS = (
    *("../../evil", "/../../evil", "@OUT@/secret", "override /model: ../../evil", "override /model: '@OUT@/evil'", "x"),
    *(
        "override /hydra/launcher: ../../../evil",
        "override hydra/launcher: basic",
        "override /hydra/job_logging: default",
    ),
    *(
        "override /hydra/callbacks: x",
        "/hydra/callbacks: ../../evil",
        "override /model: [a, b]",
        "override /model: null",
    ),
    *("optional ../../evil", "../evil@_here_", "override /data: ${oc.env:RUNNER_SECRET}", "_self_", "experiment: x"),
    *(
        "pkg://os",
        "file://@OUT@/evil",
        "override /nosuch: x",
        "/model: resnet18",
        "model@a.b: resnet18",
        "a\0b",
        "",
        "..",
        ".",
    ),
    *(
        "override /hydra/sweeper: ../../../evil",
        "override /model: ..",
        "override /dist: slurm",
        "override /model@x: resnet18",
    ),
)
BODIES = {
    "interpolation bomb": "a0: lollollol\n" + "".join(f"a{n}: '{f'${{a{n - 1}}}' * 9}'\n" for n in range(1, 12)),
    "interpolation bomb in a known key": "output_dir: ${a11}\na0: lollollol\n"
    + "".join(f"a{n}: '{f'${{a{n - 1}}}' * 9}'\n" for n in range(1, 12)),
    "interpolations in a ring": "seed: ${trainer.epochs}\ntrainer: {epochs: '${seed}'}\n",
    "interpolation of the root": "trainer: {epochs: '${trainer}'}\n",
    "a deep interpolation": "seed: " + "${" * 2000 + "seed" + "}" * 2000,
    "interpolation of itself": "seed: ${seed}\n",
    "interpolation of itself, twice": "data: {root: '${data.root}${data.root}'}\n",
    "interpolation of an alphabet": "\u00e90: x\n"
    + "".join(f"\u00e9{n + 1}: '{f'${{é{n}}}' * 2}'\n" for n in range(30)),
    "interpolation of signs": "a+0: x\n" + "".join(f"a+{n + 1}: '{f'${{a+{n}}}' * 2}'\n" for n in range(30)),
    "interpolation by computed names": "a0: x\nz0: 0\n"
    + "".join(f"z{n}: {n}\na{n}: '{f'${{a${{z{n - 1}}}}}' * 2}'\n" for n in range(1, 30)),
    "interpolation through another": "b: {c: x}\na0: ${b}\n"
    + "".join(f"a{n}: {{c: '{f'${{a{n - 1}.c}}' * 2}'}}\n" for n in range(1, 30)),
    "a very deep interpolation": "data: {root: '" + "${" * 20_000 + "a" + "}" * 20_000 + "'}\n",
    "an interpolation that does not end": "data: {root: '${'}\n",
    "a long scheme": "data: {root: '" + "a" * 200_000 + "://'}\n",
    "the environment": "seed: ${oc.env:RUNNER_SECRET}\n",
    "the environment in a text": "output_dir: ${oc.env:RUNNER_SECRET}\n",
    "the environment decoded": "trainer: {epochs: '${oc.decode:${oc.env:RUNNER_SECRET}}'}\n",
    "the environment as a key": "'${oc.env:RUNNER_SECRET}': 1\n",
    "the environment in a rendezvous": "dist: {nodes: 2, node_rank: 0, rendezvous: '${oc.env:RUNNER_SECRET}:9'}\n",
    "the environment in a storage": "sweep: {storage: 'sqlite:///${oc.env:RUNNER_SECRET}'}\n",
    "a resolver that is not there": "seed: ${eval:1}\n",
    "a resolver that creates": "seed: ${oc.create:{a:1}}\n",
    "a resolver of Hydra": "output_dir: ${hydra:runtime.cwd}/x\n",
    "a resolver of values": "seed: ${oc.dict.values:trainer}\n",
    "a resolver of keys": "seed: ${oc.dict.keys:trainer}\n",
    "python version": "seed: ${python_version:micro}\n",
    "a target": "_target_: os.system\ncommand: x\n",
    "a target in a group": "model: {_target_: os.system, command: 'touch @OUT@/pwned'}\n",
    "a target in a list": "data: {train_transforms: [{_target_: os.system, command: 'touch @OUT@/pwned'}]}\n",
    "a dotted model": "model: {name: os.system}\n",
    "a dotted custom model": "defaults: [override /model: custom]\nmodel: {name: 'os:system'}\n",
    "arguments of a custom model": "model: {arguments: {a: 1}}\n",
    "home of nobody": "output_dir: ~nosuchuser/x\n",
    "NUL in a path": 'output_dir: "a\\0b"\n',
    "NUL in data": 'data: {root: "a\\0b"}\n',
    "escape in a text": 'output_dir: "\\e[2Jx"\n',
    "escape in a key": '"\\e[2J": 1\n',
    "escape in a value": 'trainer: {precision: "\\e]0;x\\a"}\n',
    "a lone surrogate": 'output_dir: "\\ud800"\n',
    "a long number": "trainer: {epochs: " + "9" * 400 + "}\n",
    "a very long number": "trainer: {epochs: " + "9" * 5000 + "}\n",
    "a very long number of hexadecimals": "trainer: {epochs: 0x" + "f" * 6000 + "}\n",
    "a sexagesimal": "seed: 190:20:30\n",
    "a long sexagesimal": "seed: 1" + ":1" * 100_000 + "\n",
    "a long sexagesimal with a fraction": "seed: 1" + ":1" * 300 + ".5\n",
    "a float for an integer": "trainer: {epochs: 1e400}\n",
    "not a number": "optimizer: {lr: .nan}\n",
    "infinite": "optimizer: {lr: .inf}\n",
    "a date": "output_dir: 2024-01-01\n",
    "a wrong date": "output_dir: 2024-99-99\n",
    "bytes": "output_dir: !!binary aGVsbG8=\n",
    "a set": "seed: !!set {a, b}\n",
    "pairs": "seed: !!pairs [a: 1]\n",
    "merge": "a: &a {epochs: 1}\ntrainer: {<<: *a}\n",
    "merge of itself": "trainer: &a {<<: *a}\n",
    "a key that is a list": "? [a, b]\n: 1\n",
    "a key that is a number": "7: 1\n",
    "a key that is null": "null: 1\n",
    "a key that is true": "true: 1\n",
    "a key with dots": "trainer.epochs: 1\n",
    "a long key": "x" * 200_000 + ": 1\n",
    "two documents": "seed: 1\n---\nseed: 2\n",
    "only a comment": "# nothing\n",
    "a group as text": "trainer: x\n",
    "a group as list": "trainer: [1]\n",
    "groups of the void": "model: null\ndata: null\n",
    "scripts for SLURM": "defaults: [override /dist: slurm]\ndist: {slurm: {setup: ['touch @OUT@/pwned']}}\n",
    "a deep space": "sweep: {space: " + "{a: " * 90 + "1" + "}" * 90 + "}\n",
    "a search": "sweep: {space: {optimizer.lr: {low: 0, high: .nan}}}\n",
    "a starting point": "sweep: {starting_points: [{hydra.run.dir: '@OUT@/made'}]}\n",
    "a zip of hydra": "sweep: {zip: [[hydra.run.dir, hydra.mode]]}\n",
    "many classes": "data: {num_classes: 1000000000}\n",
    "many images": "data: {num_train: 1000000000000}\n",
    "a large image": "data: {image_size: 10000000}\n",
    "weights from afar": "model: {weights: 'http://127.0.0.1:9/x.pth'}\n",
    "weights of a device": "model: {weights: /dev/zero}\n",
    "exclude a secret": "data: {exclude: '@OUT@/secret.txt'}\n",
    "exclude shadow": "data: {exclude: /etc/shadow}\n",
}
_OWN = ("--config-dir", "conf")
_DOORS = (
    ("validate",),
    (),
    ("load_config",),
    ("dataset", "check", "output=out"),
    ("-m", "sweep.dry_run=true", "seed=1,2"),
)


def _experiment(text: str | bytes, *, group: str = "experiment", name: str = "x") -> Prepare:
    def prepare(place) -> None:  # type: ignore[no-untyped-def]
        place.write("conf/experiment/x.yaml", _HEAD)
        place.write(f"conf/{group}/{name}.yaml", text)
        place.write("evil.pickle", b"cposix\nsystem\n(S'" + place.filled(odd.SHELL).encode() + b"'\ntR.")
        place.write("evil.py", f"open({place.filled('@OUT@/pwned')!r}, 'w')\n")
        for spot in ("evil.yaml", "../evil.yaml", "conf/evil.yaml"):
            place.write(spot, f"{_HEAD}hydra: {{{HYDRA[0]}}}\nevil: 1\n")

    return prepare


def _inputs(title: str, text: str | bytes) -> Iterator[Input]:
    for door in _DOORS:
        command = " ".join(door[:1]) or "train"
        yield Input(f"{title} ({command})", (*(door or ("train",)), *_OWN, "experiment=x", *SMALL), _experiment(text))


def table() -> Iterator[Input]:
    """Experiments by what is odd about them."""
    for value in HYDRA:
        yield from _inputs(
            f"hydra: {value[:70]}", f"{_HEAD}hydra: {value}\n" if value[0] in "{n7[" else f"{_HEAD}hydra:\n  {value}\n"
        )
    for entry in DEFAULTS:
        yield from _inputs(
            f"defaults: {entry[:60]!r}", f"{_HEAD}defaults: [{entry if ': ' in entry else repr(entry)}]\n"
        )
    for title, body in BODIES.items():
        yield from _inputs(title, _HEAD + body)
    for title, content in odd.TEXTS.items():
        yield from _inputs(title, content)
    for title, prepare in odd.spoilt("conf/experiment/x.yaml").items():
        if "cut off" not in title:
            yield Input(title, ("validate", *_OWN, "experiment=x", *SMALL), _both(_experiment(_HEAD), prepare))
    for group in ("model", "optimizer", "hydra/launcher", "hydra/job_logging", "hydra/callbacks", "trainer"):
        for value in (HYDRA[0], "_target_: os.system", "name: ../../x", "defaults: [../../evil]"):
            argv = ("validate", *_OWN, f"{group}=x", *(item for item in SMALL if not item.startswith(f"{group}=")))
            yield Input(f"conf/{group}/x.yaml: {value[:40]}", argv, _experiment(f"{value}\n", group=group))
    for name in ("train", "config", "hydra/config", "hydra/job_logging/none", "hydra/sweeper/grid", "model/resnet18"):
        place_of, _, file = f"../conf/{name}".rpartition("/")
        yield Input(
            f"conf/{name}.yaml of one's own",
            ("validate", *_OWN, *SMALL),
            _experiment(
                f"{_HEAD}hydra: {{{HYDRA[0]}}}\n", group=place_of.removeprefix("../conf").strip("/") or ".", name=file
            ),
        )


def _both(first: Prepare, second: Prepare) -> Prepare:
    def prepare(place) -> None:  # type: ignore[no-untyped-def]
        first(place)
        second(place)

    return prepare


def grown(rng: random.Random) -> Input:
    """A sensible experiment with odd values at random keys, or a file of the table with noise."""
    door = rng.choice(_DOORS) or ("train",)
    if rng.random() < 0.4:
        text = rng.choice(
            [_HEAD + body for body in BODIES.values()] + [f"{_HEAD}hydra: {{{value}}}\n" for value in HYDRA]
        )
        content: str | bytes = odd.noisy(text.encode(), rng)
        return Input("a noisy experiment", (*door, *_OWN, "experiment=x", *SMALL), _experiment(content))
    told, values = odd.mutated(_sensible(), rng)
    text = _HEAD + yaml.safe_dump(values, default_flow_style=rng.random() < 0.3)
    return Input(told[:200], (*door, *_OWN, "experiment=x"), _experiment(text))


def _sensible() -> dict[str, object]:
    return {
        "defaults": [
            {"override /data": "synthetic"},
            {"override /model": "torchvision"},
            {"override /optimizer": "adamw"},
        ],
        "seed": 3,
        "output_dir": "outputs",
        "model": {"name": "shufflenet_v2_x0_5", "weights": None},
        "data": {
            **{"num_classes": 4, "num_train": 8, "num_val": 4, "image_size": 32, "workers": 0, "batch_size": 4},
            **{"train_transforms": [{"name": "random_horizontal_flip"}], "normalize": {"mean": [0.5], "std": [0.5]}},
        },
        "optimizer": {"lr": 0.1},
        "trainer": {"epochs": 1, "device": "cpu", "precision": "fp32", "monitor": "val_loss", "ema_decay": 0.9},
        "dist": {"procs_per_node": 1, "rendezvous": None, "slurm": {"job_name": "x", "setup": [], "extra": {}}},
        "sweep": {"space": {}, "zip": [], "storage": None},
        "hydra": {"sweep": {"dir": "x"}, "job": {"chdir": False}},
    }
