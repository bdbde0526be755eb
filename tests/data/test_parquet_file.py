"""Which columns may take more memory than their file says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.data.parquet_file import UnpacksTooMuch, is_written_out, rows_at_once, swells

LENGTHS, PREFIXES, DICTIONARY = "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY"


def metadata_of(*groups: tuple[str, ...], written: int = 1000) -> Any:
    """Of one column of texts, by the encodings of each row group."""
    chunks = [SimpleNamespace(encodings=names, total_uncompressed_size=written, num_values=100) for names in groups]
    column = SimpleNamespace(path="label", physical_type="BYTE_ARRAY", max_repetition_level=0, length=0)
    return SimpleNamespace(
        num_columns=1,
        num_row_groups=len(groups),
        row_group=lambda group: SimpleNamespace(column=lambda place: chunks[group]),
        schema=SimpleNamespace(column=lambda place: column),
    )


@pytest.mark.parametrize(
    ("groups", "written_out", "swelling"),
    [
        ([("PLAIN",), (DICTIONARY, "PLAIN")], False, False),
        ([(LENGTHS,), ("PLAIN",)], True, False),
        ([(PREFIXES,), ("PLAIN",)], True, True),
        ([(LENGTHS,), (DICTIONARY,)], True, True),  # the first half would have the second written out, value by value
        ([(DICTIONARY, LENGTHS)], True, True),
    ],
)
def test_what_repeats_and_is_written_out_swells(
    groups: list[tuple[str, ...]], written_out: bool, swelling: bool
) -> None:
    metadata = metadata_of(*groups)
    assert (is_written_out(metadata, 0), swells(metadata, 0)) == (written_out, swelling)
    rows = rows_at_once(SimpleNamespace(metadata=metadata_of(*groups, written=1_000_000)), 10, 10_000)
    assert rows == (64 if swelling else 10_000)


def test_written_out_columns_that_are_compressed_beyond_measure_are_refused() -> None:
    with pytest.raises(UnpacksTooMuch):
        rows_at_once(SimpleNamespace(metadata=metadata_of((LENGTHS,), written=70_000_000)), 10, 10_000)
