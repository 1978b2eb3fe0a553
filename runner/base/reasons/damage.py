"""What is wrong in an archive or a CSV list, in words for people who were given one."""

from __future__ import annotations

import csv
import re

from runner.base.reasons import reason_of

# Messages of zipfile, tarfile, gzip, bz2, lzma and zlib as patterns; {1} is what the first group matched.
_ARCHIVE = (
    (r"File is not a zip file", "it is no zip archive, or its end is missing"),
    (r"Bad CRC-32 for file '(.*)'", "{1} is not what was packed: its checksum differs"),
    (
        r"CRC check failed .*|Incorrect length of data produced",
        "it is not what was packed: a checksum differs",
    ),
    (
        r"(?:That compression method is not supported|compression type .*)",
        "it is packed in a way that Python can't unpack; unpack it yourself and import the folder",
    ),
    (r"zipfiles that span multiple disks are not supported", "it is one part of several; join them first"),
    (
        r"Compressed file ended before the end-of-stream marker was reached|unexpected end of data|truncated header",
        "its end is missing",
    ),
    (r"bad checksum|invalid header|bogus header.*|missing or bad subsequent header", "a header in it is damaged"),
    (
        r"(?:Bad magic number for|Truncated|Corrupt extra field|unpack requires a buffer of|Bad offset for) .*",
        "a header in it is damaged",
    ),
    (r"Error -\d+ while decompressing data.*|Corrupt input data|Invalid data stream", "its packed data is damaged"),
    (r"file could not be opened successfully.*|empty file|Not a gzipped file.*", "it is no tar archive"),
)
_CSV = (
    (r"unexpected end of data", "a quote is opened and not closed"),
    (r"field larger than field limit \((\d+)\)", "a value has more than {1} characters; is a quote not closed?"),
    (r"'.*' expected after '.*'", "something follows a closing quote; a quote within a value is written twice"),
    (r"new-line character seen in unquoted field.*", "a carriage return stands in a value without quotes"),
)


def archive_mistake(error: Exception) -> str:
    """Why an archive can't be unpacked, to end a sentence with."""
    return _in_our_words(reason_of(error) or type(error).__name__, _ARCHIVE)


def csv_mistake(error: csv.Error) -> str:
    """What is wrong in a line of a CSV file, to end a sentence with."""
    return _in_our_words(str(error), _CSV)


def _in_our_words(said: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, words in table:
        if match := re.fullmatch(pattern, said):
            return words.replace("{1}", match[1] if match.groups() else "")
    return said
