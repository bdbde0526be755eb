"""Members of tar files: the offsets and lengths of Python's own `tarfile`, and sentences for what is damaged."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.manifest.tar_headers import BLOCK, TarMember, tar_members
from vitrail.errors import VitrailError

LONG = "a-folder/" + "x" * 150 + "/" + "ü" * 60 + ".jpg"


def tar_of(names: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("folder/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "y" * (50 if form == tarfile.USTAR_FORMAT else 200)
        tar.addfile(link)
    return file.getvalue()


def listed(data: bytes) -> list[TarMember]:
    return list(tar_members(io.BytesIO(data), len(data)))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_offsets_and_lengths_are_those_of_tarfile(form: int) -> None:
    names = {"a.jpg": b"1" * 700, "folder/b.png": b"", "c.cls": b"3", "p/" * 60 + "d.jpg": b"4" * BLOCK}
    if form != tarfile.USTAR_FORMAT:  # which has no room for it
        names[LONG] = b"5" * 1000
    data = tar_of(names, form)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [TarMember(one.name, one.offset_data, one.size) for one in tar if one.isfile()]
    assert listed(data) == expected
    assert [data[m.offset : m.offset + m.length] for m in listed(data)] == list(names.values())


def test_a_size_in_base_256_and_a_pax_size(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = 9 * 2**30  # beyond eleven octal digits
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("huge.tif")
        info.size = huge
        header = info.tobuf(form)
        members = tar_members(io.BytesIO(header), len(header) + huge)
        assert next(members) == TarMember("huge.tif", len(header), huge)


def test_what_comes_before_the_damage_is_given() -> None:
    data = tar_of({"a.jpg": b"1" * 700, "b.jpg": b"2" * 700, "c.jpg": b"3" * 700})
    second = listed(data)[1]
    cuts: dict[int, str] = {second.offset + 10: "is truncated: what begins at", second.offset - 100: "ends in a header"}
    for cut, words in cuts.items():
        members = tar_members(io.BytesIO(data[:cut]), cut)
        assert next(members).name == "a.jpg"
        with pytest.raises(VitrailError, match=words):
            next(members)
    broken = bytearray(data)
    broken[second.offset - BLOCK + 3] ^= 1
    members = tar_members(io.BytesIO(broken), len(broken))
    assert next(members).name == "a.jpg"
    with pytest.raises(VitrailError, match="does not have its checksum"):
        next(members)


def _with_size(info: tarfile.TarInfo, size: int) -> bytes:
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"no tar at all " * 100,
        lambda: _with_size(_typed(b"L"), 10**10) + b"\0" * BLOCK,  # a name of 10 GB
        lambda: _with_size(_typed(b"x"), 20) + b"99999 path=x\n".ljust(BLOCK, b"\0"),
        lambda: _with_size(_typed(b"x"), 20) + b"15 size=-100000\n".ljust(BLOCK, b"\0"),
        lambda: tar_of({"x" * 5000 + ".jpg": b""}),  # a name that every row of a manifest would carry
    ],
)
def test_hostile_headers_are_refused(make: Callable[[], bytes]) -> None:
    data = make()
    with pytest.raises(VitrailError):
        list(tar_members(io.BytesIO(data), max(len(data), 10**11)))


def test_a_pax_header_of_very_many_records_takes_no_time_that_grows_with_their_square() -> None:
    records = b"4 a\n" * 200_000
    header = _with_size(_typed(b"x"), len(records)) + records + b"\0" * (-len(records) % BLOCK)
    begun = time.process_time()
    assert [member.name for member in listed(header + tar_of({"a.jpg": b"1"}))] == ["a.jpg"]
    assert time.process_time() - begun < 2  # it was 5, and 9 for the longest header


def _typed(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("././@header")
    info.type = kind
    return info


@settings(max_examples=60)
@given(st.data())
def test_whatever_is_changed_it_ends_in_members_or_a_sentence(data: st.DataObject) -> None:
    tar = bytearray(tar_of({"a.jpg": b"1" * 600, LONG: b"2" * 10}, tarfile.PAX_FORMAT))
    for _ in range(data.draw(st.integers(1, 4))):
        tar[data.draw(st.integers(0, len(tar) - 1))] = data.draw(st.integers(0, 255))
    try:
        for member in tar_members(io.BytesIO(tar), len(tar)):
            assert 0 <= member.offset <= member.offset + member.length <= len(tar)
    except VitrailError:
        pass
