import pytest

from runner.base.errors import ConfigError
from runner.cli.call import expand_multirun


@pytest.mark.parametrize(
    ("argv", "calls"),
    [
        (["run=a,b"], [["run=a,b"]]),
        (["-m", "run=a,b", "split=val"], [["run=a", "split=val"], ["run=b", "split=val"]]),
        (["run=a", "--multirun", "split=val,test", "data.batch_size=1,2"], None),
        (["-m", "run=a", "data.eval_transforms=[{name: a, size: 1}, {name: b}]"], None),
        (["-m", "run='one, two',/b c"], [["run=one, two"], ["run=/b c"]]),
    ],
)
def test_several_values_are_several_calls(argv, calls):
    found = expand_multirun(argv)
    assert found == calls or calls is None
    if "data.batch_size=1,2" in argv:
        assert [call[1:] for call in found] == [
            [f"split={split}", f"data.batch_size={size}"] for split in ("val", "test") for size in (1, 2)
        ]


@pytest.mark.parametrize("argument", ["trainer.epochs=interval(1,4)", "run=a,", "seed=range(0,1,0)"])
def test_sweeps_without_a_list_of_values_are_refused(argument):
    with pytest.raises(ConfigError):
        expand_multirun(["-m", argument])


def test_calls_that_nobody_could_wait_for_are_refused():
    with pytest.raises(ConfigError, match="describes 1,000,000 calls"):
        expand_multirun(["-m", "seed=range(0,1000)", "trainer.epochs=range(1,1001)"])
