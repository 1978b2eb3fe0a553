"""What Hydra, OmegaConf and their parser refuse, in the runner's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import RunnerError
from runner.config.arguments import read_command_line
from runner.config.compose import compose
from runner.config.hydra_words import in_our_words

HEADER = "# @package _global_\n"
OF_THE_LIBRARIES = (
    *("viable", "<EOF>", "Lexer", "mismatched", "struct", "append", "KeyError", "Interpolation key", "Merge error"),
    *("DictConfig", "raised", "ValueError", "Unsupported", "Error merging", "Duplicate", "Could not"),
)
TYPED = [
    ("data.batch_size=[1,2", "the bracket [ is not closed; add ]"),
    ("data.batch_size={a:1", "the bracket { is not closed; add }"),
    ("optimizer.lr=1)", "the bracket ) closes none that is open"),
    ("model.name='x", "the quote ' is not closed"),
    ('model.name="x', 'the quote " is not closed'),
    ("x y=1", "its key has ' ' in it"),
    ("optimizer..lr=1", "its key has a dot too many in it"),
    ("optimizer.lr=a=b", "'=' can't stand in a value without quotes"),
    ("optimizer.lr=a#b", "'#' can't stand in a value without quotes"),
    ("optimizer.lr=foo(1)", "there is no function foo; there are choice, range"),
    ("optimizer.lr=range(a,b)", "range(…) can't take a,b; it takes numbers: range(START,STOP)"),
    ("optimizer.lr=choice()", "choice(…) can't take nothing; it takes values: choice(A,B,C)"),
    ("model@foo=resnet18", "an option always goes into its own group; leave @foo out"),
    ("+model@a.b=resnet18", "leave @a.b out"),
    ("~model@x", "leave @x out"),
    ("model/x=3", "there is no such key or config group"),
    ("~optimizer.nope", "~ takes a key away, and this one is not there"),
    ("~optimizer.lr=3", "takes the key away where its value is 3, but it is 0.01"),
    ("data.root=${oc.env:W8_NOT_SET}", "the environment variable W8_NOT_SET is not set; set it, or write"),
    ("data.root=${nope}", "${nope} names a key that is not there"),
    ("data.root=${.nope}", "refers to a neighbour by a leading dot, which works in files only"),
    ("hydra.job.chdir=maybe", "'maybe' must be true or false"),
    ("sweep.space=[1]", "a list stands where a group of keys must be; write {KEY: VALUE}"),
    ("model=[resnet18,resnet50]", 'model = ["resnet18", "resnet50"]: must be one option; of several, the last'),
    ("optimizer=['sgd',\"adamw\"]", 'optimizer = ["sgd", "adamw"]: must be one option'),
]
FILES = [
    ("hydra:\n  run: 3\n", "one of Hydra's own groups of keys is set to the value 3"),
    ("hydra:\n  job:\n    chdir: maybe\n", "'maybe' must be true or false"),
    ("hydra:\n  searchpath: [pkg://os]\n", "hydra.searchpath can't be set by an experiment; type --config-dir"),
    ("- a\n- b\n", "a list stands where a group of keys must be"),
    ("trainer: [1]\n", "a list stands where a group of keys must be"),
    ("defaults:\n  - _self_\n  - _self_\n", "its defaults list has _self_ more than once"),
    ("defaults:\n  - /model: resnet50\n", "write `- override /model: resnet50`"),
    ("defaults: resnet50\n", "`defaults` must be a list"),
    ("defaults:\n  - 3\n", "an entry of a defaults list can't be read"),
    ("defaults:\n  - {a: b, c: d}\n", "an entry of a defaults list can't be read"),
    ("defaults:\n  - override /model\n", "names no option; write `- override /model: NAME`"),
]


@pytest.mark.parametrize(("override", "said"), TYPED, ids=[override for override, _ in TYPED])
def test_what_is_typed_wrong_is_explained(override: str, said: str) -> None:
    with pytest.raises(RunnerError) as caught:
        compose([override])
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in OF_THE_LIBRARIES)


@pytest.mark.parametrize(("text", "said"), FILES, ids=[text for text, _ in FILES])
def test_what_is_written_wrong_is_explained(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(HEADER + text)
    with pytest.raises(RunnerError) as caught:
        compose(["--config-dir", str(tmp_path), "experiment=mine"])
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in OF_THE_LIBRARIES)


def test_an_unknown_message_stands_in_parentheses() -> None:
    assert in_our_words("Something new.") == "the config can't be composed (Something new)"


@pytest.mark.parametrize("override", ["optimizer.lr=range(1,100,-1)", "optimizer.lr=range(1,1)"])
def test_a_range_without_values_is_refused(override: str) -> None:
    with pytest.raises(RunnerError, match="a step that leads from its start to its stop"):
        compose(["-m", override])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--cfg", "nope"], "there are job, hydra, all"),
        (["--info", "nope"], "there are all, config, defaults"),
        (["-m", "--cfg", "job", "seed=1,2"], "type it without -m"),
    ],
)
def test_flags_that_show_something_are_checked_before_hydra_reads_them(argv: list[str], said: str) -> None:
    with pytest.raises(RunnerError, match=said):
        read_command_line(argv)
