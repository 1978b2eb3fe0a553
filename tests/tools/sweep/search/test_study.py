"""Proposals: the same seed proposes the same, through kills; what is known is told once."""

from __future__ import annotations

import pytest
from optuna.trial import TrialState

from runner.base.errors import ConfigError, OutputError
from runner.library import load_config
from runner.tools.sweep.axes import Axis, Choices, Interval, Normal
from runner.tools.sweep.search.parameters import known_parameters
from runner.tools.sweep.search.storage import JournalLock
from runner.tools.sweep.search.strategies import SeededSampler
from runner.tools.sweep.search.study import Judgement, Search
from runner.tools.sweep.sweep_folder import SweepFolder, outcome_of

AXES = [
    Axis(key="optimizer", override="optimizer", values=Choices(values=("sgd", "adamw"))),
    Axis(key="optimizer.lr", override="++optimizer.lr", values=Interval(low=1e-4, high=1, is_log=True)),
    Axis(key="data.batch_size", override="++data.batch_size", values=Interval(low=8, high=64, step=8)),
    Axis(key="seed", override="++seed", values=Interval(low=1, high=9, is_whole=True)),
    Axis(
        key="optimizer.momentum",
        override="++optimizer.momentum",
        values=Normal(mu=0.8, sigma=0.01),
        when={"optimizer": ("sgd",)},
    ),
]


def search(folder: SweepFolder, *overrides: str, sampler="random", axes=AXES) -> Search:
    sweep = load_config(["data=synthetic", *overrides]).sweep.with_metric("val_top1")
    return Search(sweep, folder, axes, sampler)


def propose(found: Search, count: int, first: int = 0) -> list[dict[str, str]]:
    return [found.propose(first + at)[1] for at in range(count)]


@pytest.fixture
def another(tmp_path):
    path = tmp_path / "another"
    path.mkdir()
    return SweepFolder(path)


def test_proposals_lie_within_the_space_and_follow_its_conditions(folder):
    for values in propose(search(folder), 20):
        assert 1e-4 <= float(values["optimizer.lr"]) <= 1
        assert int(values["data.batch_size"]) in range(8, 65, 8)
        assert 1 <= int(values["seed"]) <= 9
        assert ("optimizer.momentum" in values) == (values["optimizer"] == "sgd")


def test_the_same_seed_proposes_the_same_and_another_seed_others(folder, another, tmp_path):
    third = SweepFolder(tmp_path)
    expected = propose(search(folder), 6)
    assert propose(search(another), 6) == expected
    assert propose(search(third, "sweep.seed=2"), 6) != expected
    assert len({tuple(values.items()) for values in expected}) == 6


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "nsga2"])
def test_a_killed_search_proposes_the_same_as_one_that_was_not(sampler, folder, another, base_config):
    def told(found: Search, number: int, study_number: int, values: dict[str, str]) -> None:
        found.study.tell(study_number, float(values["optimizer.lr"]))

    whole = search(another, sampler=sampler)
    expected = []
    for number in range(14):
        study_number, values = whole.propose(number)
        told(whole, number, study_number, values)
        expected.append(values)
    # Killed after each proposal: before it is recorded, or after.
    seen, recorded = [], []
    for number in range(14):
        killed = search(folder, sampler=sampler)
        killed.prepare(recorded)
        killed.propose(number)
        again = search(folder, sampler=sampler)
        again.prepare(recorded)
        study_number, values = again.propose(number)
        recorded.append(_trial(number, study_number, base_config))
        told(again, number, study_number, values)
        seen.append(values)
    assert seen == expected


def _trial(number, study_number, config):
    from runner.tools.sweep.sweep_folder import Trial

    return Trial(number=number, identity="", values={}, overrides=[], config=config, study_number=study_number)


def test_starting_points_come_first_and_survive_a_kill(folder):
    point = "'sweep.starting_points=[{optimizer: adamw, optimizer.lr: 0.125}, {seed: 7}]'".strip("'")
    begun = search(folder, point)
    begun.prepare([])
    assert begun.propose(0)[1]["optimizer.lr"] == "0.125"
    again = search(folder, point)
    again.prepare([])
    proposed = propose(again, 3)
    assert sorted(values["optimizer.lr"] == "0.125" for values in proposed) == [False, False, True]
    assert sum(values["seed"] == "7" for values in proposed) >= 1


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("{optimizer: rmsprop}", "must be one of sgd, adamw"),
        ("{optimizer.lr: 2}", "must be a number from 0.0001 to 1"),
        ("{trainer.epochs: 2}", "'trainer.epochs' does not vary in this sweep"),
    ],
)
def test_a_starting_point_outside_the_space_is_refused(point, message, folder):
    found = search(folder, f"sweep.starting_points=[{point}]")
    with pytest.raises(ConfigError, match=message):
        found.prepare([])


def test_results_are_told_once_with_every_epoch(folder, add_trial):
    found = search(folder, axes=AXES[1:2])
    done, pruned, failed = (found.propose(number)[0] for number in range(3))
    trials = [
        add_trial({"optimizer.lr": "0.1"}, [0.3, 0.6, 0.5], study_number=done),
        add_trial({"optimizer.lr": "0.2"}, [0.1], "pruned", study_number=pruned),
        add_trial({"optimizer.lr": "0.3"}, [], "failed", study_number=failed),
    ]
    for _ in range(2):
        for trial in trials:
            found.tell(outcome_of(trial, folder, ("val_top1",), ("maximize",)))
    states = [trial.state for trial in found.study.trials]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    assert found.study.trials[0].intermediate_values == {1: 0.3, 2: 0.6, 3: 0.5}
    assert found.study.best_value == 0.6
    assert found.study.trials[1].value == 0.1


def test_a_search_with_other_directions_is_refused(folder):
    search(folder)
    with pytest.raises(ConfigError, match=r"begun with \['maximize'\]"):
        search(folder, "sweep.direction=minimize")


def test_several_sweeps_share_a_search(folder, another, tmp_path):
    shared = ("sweep.storage=sqlite:///" + str(tmp_path / "shared.db"), "sweep.study=ours", "sweep.num_trials=3")
    one, other = search(folder, *shared), search(another, *shared)
    numbers = [one.propose(0)[0], other.propose(0)[0], one.propose(1)[0]]
    assert numbers == [0, 1, 2]
    assert one.is_exhausted(2) and other.is_exhausted(1)
    other.prepare([])
    states = [trial.state for trial in one.study.trials]
    assert states == [TrialState.RUNNING, TrialState.FAIL, TrialState.RUNNING]


def test_a_storage_that_can_not_be_opened_is_named(folder):
    with pytest.raises(ConfigError, match=r"sweep\.storage = 'sqlite:////nowhere/x\.db': can't be opened"):
        search(folder, "sweep.storage=sqlite:////nowhere/x.db")


def test_a_line_that_a_power_cut_left_half_written_is_taken_away(folder):
    found = search(folder)
    before = found.propose(0)
    with folder.journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    again = search(folder)
    again.propose(1)
    assert again.study.trials[0].params == found.study.trials[0].params
    assert before[0] == 0
    assert folder.journal.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("damage", [b'{"op', b"3", b"\xff\xfe\x00x"])
def test_a_damaged_journal_is_named_with_the_line(folder, damage):
    search(folder).propose(0)
    lines = folder.journal.read_bytes().splitlines()
    folder.journal.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:], b""]))
    with pytest.raises(OutputError, match=r"journal\.log is damaged in line 3: .*; move it away and resume"):
        search(folder)


@pytest.mark.parametrize("sampler", ["tpe", None])
def test_a_lost_journal_is_put_together_again_from_the_trials(folder, add_trial, sampler):
    begun = search(folder, sampler=sampler, axes=AXES[:4])
    trials = []
    for number, epochs in enumerate(([0.3, 0.6], [0.1])):
        study_number, values = (begun.enter(number), {}) if sampler is None else begun.propose(number)
        trials.append(add_trial(values, epochs, "pruned" if number else "completed", study_number=study_number))
    expected = [trial.params for trial in begun.study.trials]
    folder.journal.rename(folder.path / "damaged.log")
    again = search(folder, sampler=sampler, axes=AXES[:4])
    again.prepare(trials)
    for trial in trials:
        again.tell(outcome_of(trial, folder, ("val_top1",), ("maximize",)))
    assert [trial.state for trial in again.study.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert [trial.study_number for trial in folder.trials()] == [0, 1]
    assert again.study.best_value == 0.6
    for before, after in zip(expected, (trial.params for trial in again.study.trials), strict=True):
        assert after.keys() == before.keys()
        assert after.get("optimizer.lr") == pytest.approx(before.get("optimizer.lr"))


def test_values_of_a_lost_journal_are_read_as_they_were_written():
    values = {"optimizer": "sgd", "optimizer.lr": "5e-05", "seed": "3", "data.batch_size": "16"}
    axes = [AXES[0], Axis(key="optimizer.lr", override="", values=Interval(low=1e-6, high=1, is_log=True)), *AXES[2:4]]
    parameters, distributions = known_parameters(values, axes)
    assert parameters == {"optimizer": "sgd", "optimizer.lr": 5e-05, "data.batch_size": 16.0, "seed": 3}
    assert parameters.keys() == distributions.keys()
    assert "optimizer.lr" not in known_parameters(values, AXES)[0], "below the bound as it is now"


def test_a_search_with_other_choices_or_another_kind_of_numbers_is_refused(folder):
    search(folder).propose(0)
    other = [
        Axis(key="optimizer", override="optimizer", values=Choices(values=("sgd", "lamb"))),
        Axis(key="optimizer.lr", override="++optimizer.lr", values=Interval(low=0.1, high=0.5, is_log=True)),
        Axis(key="seed", override="++seed", values=Interval(low=1, high=9)),
    ]
    with pytest.raises(ConfigError) as caught:
        search(folder, axes=other).prepare([])
    assert [problem.key for problem in caught.value.problems] == ["optimizer", "seed"]


def test_a_completed_trial_without_a_value_ends_no_search(folder, add_trial):
    found = search(folder, axes=AXES[1:2])
    trial = add_trial({"optimizer.lr": "0.1"}, [], "completed", study_number=found.propose(0)[0])
    found.tell(outcome_of(trial, folder, ("val_top1",), ("maximize",)))
    assert [known.state for known in found.study.trials] == [TrialState.FAIL]


def test_the_lock_of_the_journal_is_free_after_its_holder(folder):
    for _ in range(2):
        lock = JournalLock(folder.journal)
        assert lock.acquire()
        lock.release()


def test_samplers_do_not_depend_on_earlier_draws():
    first, second = SeededSampler("random", 1), SeededSampler("random", 1)
    import optuna

    study = optuna.create_study(sampler=first)
    drawn = [study.ask().suggest_float("x", 0, 1) for _ in range(3)]
    other = optuna.create_study(sampler=second)
    other.add_trials([optuna.trial.create_trial(value=1.0)] * 2)
    assert other.ask().suggest_float("x", 0, 1) == drawn[2]


# Judgements between two epochs ------------------------------------------------------------------------------------


def judgement(folder: SweepFolder, number: int, *overrides: str) -> Judgement:
    pruner = ("sweep.pruner=median", "sweep.pruning.startup_trials=1")
    sweep = load_config(["data=synthetic", *pruner, *overrides]).sweep.with_metric("val_top1")
    return Judgement(sweep, folder, number, max_epochs=10)


def with_a_good_trial(folder: SweepFolder) -> int:
    found = search(folder, axes=AXES[1:2])
    judgement(folder, found.propose(0)[0]).report({epoch: 0.9 for epoch in range(1, 7)})
    found.study.tell(0, 0.9)
    return found.propose(1)[0]


def test_a_trial_is_pruned_at_the_interval_after_the_delay(folder):
    number = with_a_good_trial(folder)
    judge = judgement(folder, number, "sweep.pruning.delay_evaluation=3", "sweep.pruning.evaluation_interval=2")
    judge.report({epoch: 0.1 for epoch in range(1, 6)})
    assert [bool(judge.decision(epoch)) for epoch in range(1, 5)] == [False, False, False, True]
    assert judge.decision(4) == "median: val_top1 = 0.1"


def test_a_decision_that_is_repeated_is_the_same(folder):
    number = with_a_good_trial(folder)
    verdicts = []
    for _ in range(2):  # the second one in a process that goes on after a kill
        judge = judgement(folder, number)
        judge.report({1: 0.1})
        verdicts.append(judge.decision(1))
    assert verdicts == ["median: val_top1 = 0.1"] * 2


def test_a_good_trial_is_not_pruned(folder):
    judge = judgement(folder, with_a_good_trial(folder))
    judge.report({1: 0.95})
    assert judge.decision(1) is None
