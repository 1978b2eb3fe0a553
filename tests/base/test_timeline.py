from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runner.base.timeline import parse_moment, to_iso


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
def test_a_timestamp_outside_of_1970_to_9000_is_none(text, moment):
    assert parse_moment(text) == moment


def test_a_timestamp_survives_writing_and_reading():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert parse_moment(to_iso(moment)) == moment
