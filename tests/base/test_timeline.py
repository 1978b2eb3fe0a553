from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runner.base.timeline import read_moment, written


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05+00:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("yesterday", None),
        (17, None),
        (None, None),
        ("9999-12-31T23:59:59-23:59", None),
        ("0001-01-01T00:00:00+23:59", None),
    ],
)
def test_what_a_record_holds_is_a_moment_of_our_age_or_none(text, moment):
    assert read_moment(text) == moment


def test_what_is_written_can_be_read():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert read_moment(written(moment)) == moment
