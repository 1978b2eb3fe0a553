"""A file of scores that was cut off anywhere tells how many of its rows are whole."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from runner.base.errors import ConfigError, MissingPackageError
from runner.tools.predict.outputs import SUFFIXES, Scored, columns, format_of

COLUMNS = columns(["a", 'b\n"x'], has_labels=True)


def scored(first: int, count: int) -> Scored:
    generator = np.random.default_rng(first)
    return Scored(
        names=[f'im,"{number}"\nx.jpg' for number in range(first, first + count)],
        labels=["a"] * count,
        predicted=["a" if number % 3 else None for number in range(count)],
        probabilities=generator.random((count, 2), dtype=np.float32),
        errors=[None if number % 3 else "it's bad" for number in range(count)],
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_cut_anywhere_can_be_resumed(tmp_path, suffix):
    form = format_of(tmp_path / f"scores{suffix}", COLUMNS)
    batches = [scored(0, 3), scored(3, 1), scored(4, 2)]
    content = form.head() + b"".join(map(form.encode, batches))
    file = tmp_path / "partial"
    rows = [form.encode(row) for row in scored_rows(batches)]
    for cut in range(len(content) + 1):
        file.write_bytes(content[:cut])
        num_rows, end = form.complete_rows(file)
        assert end <= cut
        if num_rows:
            # What was cut off is written anew, row by row: the same bytes but for how Parquet's rows are batched.
            file.write_bytes(content[:end] + b"".join(rows[num_rows:]))
            assert form.complete_rows(file)[0] == 6
            if suffix != ".parquet":
                assert file.read_bytes() == content
    assert form.complete_rows(file) == (6, file.stat().st_size)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".parquet"])
def test_a_file_name_that_is_no_utf8_is_written_as_its_escape(tmp_path, suffix):
    row = Scored(
        names=["caf\udce9.jpg"], labels=None, predicted=["a"], probabilities=np.ones((1, 2), np.float32), errors=[None]
    )
    form = format_of(tmp_path / f"scores{suffix}", columns(["a", "b"], has_labels=False))
    assert rb"caf\udce9.jpg" in form.head() + form.encode(row)


def scored_rows(batches: list[Scored]) -> list[Scored]:
    """Each row as a batch of its own."""
    return [
        Scored(
            names=[batch.names[row]],
            labels=["a"],
            predicted=[batch.predicted[row]],
            probabilities=batch.probabilities[row : row + 1],
            errors=[batch.errors[row]],
        )
        for batch in batches
        for row in range(len(batch.names))
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_scores_read_back_are_the_scores_written(tmp_path, suffix):
    output = tmp_path / f"scores{suffix}"
    form = format_of(output, COLUMNS)
    rows = scored(0, 5)
    (tmp_path / "partial").write_bytes(form.head() + form.encode(rows))
    form.finish(tmp_path / "partial", output)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    if suffix == ".csv":
        with output.open(newline="") as file:
            found = [dict(row) for row in csv.DictReader(file)]
    elif suffix == ".jsonl":
        found = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(output).to_pylist()
    assert [row["path"] for row in found] == list(rows.names)
    assert [row["error"] or None for row in found] == list(rows.errors)
    assert [row["Scored Labels"] or None for row in found] == list(rows.predicted)
    shares = [row['Scored Probabilities_b\n"x'] or None for row in found]
    expected = [share if rows.errors[n] is None else None for n, share in enumerate(rows.probabilities[:, 1].tolist())]
    assert [share and np.float32(share) for share in shares] == [share and np.float32(share) for share in expected]


def test_parquet_of_a_thousand_classes(tmp_path):
    import pyarrow.parquet

    names = columns([f"class {number}" for number in range(1000)], has_labels=False)
    output = tmp_path / "scores.parquet"
    form = format_of(output, names)
    shares = np.random.default_rng(0).random((64, 1000), dtype=np.float32)
    batch = Scored(names=["x"] * 64, labels=None, predicted=["class 1"] * 64, probabilities=shares, errors=[None] * 64)
    (tmp_path / "partial").write_bytes(form.head() + form.encode(batch) * 3)
    assert form.complete_rows(tmp_path / "partial")[0] == 192
    form.finish(tmp_path / "partial", output)
    table = pyarrow.parquet.read_table(output)
    assert (table.num_rows, table.num_columns) == (192, 1003)
    assert table.column("Scored Probabilities_class 999").to_pylist()[:64] == shares[:, 999].tolist()


def test_other_endings_and_a_missing_extra_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"must end in \.csv, \.jsonl, \.parquet"):
        format_of(tmp_path / "scores.xlsx", COLUMNS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match='pip install "pyarrow>='):
        format_of(tmp_path / "scores.parquet", COLUMNS)
