from __future__ import annotations

import pytest

from runner.base.untrusted import UntrustedFileError
from runner.data.sources.rows import (
    Columns,
    ListMistake,
    MissingColumns,
    contradicting_labels,
    entry_text,
    rows_of,
)

COLUMNS = Columns(path="path", label="label")


def read(tmp_path, content, columns=COLUMNS, name="list.csv", **options):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(rows_of(file, columns, **{"delimiter": ",", **options}))


def test_rows_have_their_line_and_the_columns_by_name(tmp_path):
    columns = Columns(path="file", label="class", group="patient", split="part")
    content = '\ufeffclass,part, file ,patient\r\n ant ,train,"a ,\n1.jpg",7\r\n\r\nbee,,b.jpg,8\r\n'
    with pytest.raises(ListMistake, match="line 5: has no value for 'part'"):
        read(tmp_path, content, columns)
    rows = read(tmp_path, content.replace("bee,,", "bee,val,"), columns)
    assert [tuple(row) for row in rows] == [(3, "a ,\n1.jpg", "ant", "7", "train"), (5, "b.jpg", "bee", "8", "val")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty; expected a header line"),
        ("path,label\na.jpg,ant,x\n", "line 2: 3 values, but the header has 2 columns"),
        ('path,label\n"a.jpg,ant\n', "line 2: this is no CSV"),
        ("path,label,label\n", "has several columns label"),
        ("path,label\n".encode("utf-16"), "this is UTF-16; save it as UTF-8"),
        (b"path,label\na.jpg,\xff\n", "line 2: the label .* is no UTF-8"),
        (b"\0" * (1 << 20), "line 1 has 1,048,576 characters or more"),
    ],
)
def test_an_error_in_a_list_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(ListMistake, match=message):
        read(tmp_path, content)


def test_a_path_may_contain_bytes_that_are_no_utf8(tmp_path):
    (row,) = read(tmp_path, b"path,label\na\xff.jpg,ant\n")
    assert row.path == "a\udcff.jpg"


def test_another_encoding_is_strict(tmp_path):
    assert read(tmp_path, "path,label\na.jpg,Käfer\n".encode("cp1252"), encoding="cp1252")[0].label == "Käfer"
    with pytest.raises(UnicodeError):
        read(tmp_path, b"path,label\na.jpg,\x81\n", encoding="cp1252")


def test_missing_columns_show_the_header_of_a_list_but_of_no_other_file(tmp_path):
    with pytest.raises(MissingColumns) as missing:
        read(tmp_path, "path;label\n")
    assert (missing.value.missing, missing.value.there_are) == ({"path": "path", "label": "label"}, "path;label")
    assert missing.value.is_joined
    with pytest.raises(MissingColumns) as missing:
        read(tmp_path, "secret\n", name="password.txt")
    assert missing.value.there_are == "1 of other names"


def test_a_folder_is_no_list(tmp_path):
    with pytest.raises(UntrustedFileError):
        list(rows_of(tmp_path, COLUMNS, delimiter=","))


def test_messages_show_names_of_images_only(tmp_path):
    ant, bee = read(tmp_path, "path,label\na.jpg,ant\na.jpg,bee\n")
    assert (entry_text("a.jpg", 2), contradicting_labels(ant, bee)) == ("a.jpg", "ant, then bee")
    ant, bee = read(tmp_path, "path,label\nsecret,ant\nsecret,bee\n")
    assert (entry_text("secret", 2), contradicting_labels(ant, bee)) == ("line 2", "two classes")
