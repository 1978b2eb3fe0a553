"""What holds the tests themselves to something can fail too."""

from __future__ import annotations

import os

import pytest

from tests.conftest import exploded

pytest_plugins = "pytester"


@pytest.mark.any_loss
@pytest.mark.parametrize("loss", ["101.0", "2.4e+13", "-1e5", "Infinity", "NaN"])
def test_a_loss_that_explodes_is_found(tmp_path, loss):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"epoch": 1, "train_loss": 1.5, "val_loss": {loss}, "val_top1": 0.5}}\n{{"epoch": 2, "val')
    assert exploded(file) == [f'"val_loss": {loss}']
    file.write_text(f'{{"train_loss": 1.5, "val_loss": 0.1, "val_ema_loss": {loss}}}\n')
    assert exploded(file) == [f'"val_ema_loss": {loss}']


def test_what_is_no_training_is_left_alone(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"epoch": 1, "train_loss": 1.5, "val_loss": 99.9, "val_images": 1000}\n')
    assert exploded(file) == []
    file.unlink()
    assert exploded(file) == []
    os.mkfifo(file)
    assert exploded(file) == []


@pytest.mark.any_loss  # its tests write below its own folder
def test_it_fails_the_test_that_has_trained_so_wherever_it_did(pytester):
    pytester.makeconftest("from tests.conftest import known_folders, no_loss_explodes  # noqa: F401")
    pytester.makepyfile(
        """
        import pytest

        def write(folder, loss):
            (folder / "outputs").mkdir()
            (folder / "outputs" / "metrics.jsonl").write_text('{"val_loss": %s}' % loss)

        @pytest.fixture(scope="session")
        def shared(tmp_path_factory):
            write(tmp_path_factory.mktemp("shared"), "2.4e13")

        def test_by_itself(tmp_path):
            write(tmp_path, "1e6")

        def test_by_a_fixture_of_many(shared):
            pass

        def test_that_is_told_once(shared, tmp_path):
            write(tmp_path, "99")

        @pytest.mark.any_loss
        def test_on_purpose(tmp_path):
            write(tmp_path, "NaN")
        """
    )
    result = pytester.runpytest("-W", "ignore::pytest.PytestUnknownMarkWarning")
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["ERROR *::test_by_itself*", "ERROR *::test_by_a_fixture_of_many*"])
