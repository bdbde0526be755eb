"""Outlines and run lengths give the pixels that they mean, compared with COCO's own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval.core import mask as coco
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile import outcome
from vitrail.images import polygons
from vitrail.images.polygons import inside
from vitrail.images.rle import decode_rle


def test_a_square_has_exactly_its_pixels() -> None:
    found = inside(np.array([(1, 2), (4, 2), (4, 6), (1, 6)], dtype=float), (8, 7))
    expected = np.zeros((8, 7), dtype=bool)
    expected[2:6, 1:4] = True
    assert (found == expected).all()


def test_neighbours_share_no_pixel_and_leave_none() -> None:
    corners = np.array([(0, 0), (9, 0), (9, 9), (0, 9)], dtype=float)
    middle = np.array([(3.5, 4.5)])  # on the centre of a pixel
    parts = [inside(np.concatenate([corners[[n, (n + 1) % 4]], middle]), (9, 9)) for n in range(4)]
    assert (np.sum(parts, axis=0) == 1).all()


def test_what_reaches_beyond_the_picture_is_cut() -> None:
    assert inside(np.array([(-50, -50), (50, -50), (50, 50), (-50, 50)], dtype=float), (5, 4)).all()
    assert not inside(np.array([(10, 10), (20, 10), (20, 20)], dtype=float), (5, 4)).any()
    assert not inside(np.array([(1, 1), (3, 3)], dtype=float), (5, 4)).any()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 25), st.floats(-5, 25)), min_size=3, max_size=9),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_each_pixel_is_in_as_its_centre_is(points: list[tuple[float, float]], height: int, width: int) -> None:
    found = inside(np.array(points), (height, width))
    for row in range(height):
        for column in range(width):
            x, y, odd = column + 0.5, row + 0.5, False
            for (x1, y1), (x2, y2) in zip(points, [*points[1:], points[0]], strict=True):
                crosses = (y1 <= y) != (y2 <= y)
                at = x1 + (y - y1) / (y2 - y1) * (x2 - x1) if crosses else 0.0
                if crosses and abs(at - x) < 1e-6:
                    return  # rounding decides
                odd ^= crosses and at < x
            assert found[row, column] == odd


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6))
def test_run_lengths_of_both_kinds(height: int, width: int, share: float, seed: int) -> None:
    pixels = np.random.default_rng(seed).random((height, width)) < share
    packed = coco.encode(np.asfortranarray(pixels.astype(np.uint8)))
    text = packed["counts"].decode() if isinstance(packed["counts"], bytes) else packed["counts"]
    assert (decode_rle(text, (height, width)) == pixels).all()
    flat = pixels.T.ravel()
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flat]).astype(int)))
    runs = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    assert (decode_rle(runs, (height, width)) == pixels).all()


@pytest.mark.parametrize("counts", [[3, 3], [30], [-1, 26], "04", "P"])
def test_runs_that_do_not_fit_the_picture(counts: object) -> None:
    with pytest.raises(ValueError, match="its "):
        decode_rle(counts, (5, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", ["[2**62] * 4 + [1024]", "[2**63, 1024]", "[2**64 - 1024, 2048]", "'o' * 2_000_000"])
def test_runs_that_would_wrap_or_never_end(counts: str, tmp_path: Path) -> None:
    """A sum of 64 bits wraps to the size of the picture, and what follows writes past its end."""
    code = f"""
    from vitrail.images.rle import decode_rle
    try:
        decode_rle({counts}, (32, 32))
    except ValueError as error:
        print("refused:", error)
    """
    assert outcome(code, tmp_path).startswith("refused: its ")


def test_a_polygon_that_scribbles_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    """Half a million edges from top to bottom are some megabytes of text, and took 13 GB."""
    code = """
    import numpy as np
    from vitrail.images.polygons import inside
    points = np.zeros((500_000, 2))
    points[::2] = 500
    points[1::2, 0] = 250
    try:
        inside(points, (500, 500))
    except ValueError as error:
        print("refused:", error)
    """
    assert "refused: its polygon crosses" in outcome(code, tmp_path)


def test_many_crossings_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).uniform(-5, 45, (60, 2))
    whole = inside(points, (40, 40))
    monkeypatch.setattr(polygons, "AT_ONCE", 50)
    assert (inside(points, (40, 40)) == whole).all() and 0 < whole.sum() < whole.size


@pytest.mark.parametrize("far", [1e18, 1e155, 1.7e308])
def test_corners_that_are_very_far_away(far: float) -> None:
    points = np.array([[-far, -far], [far, -far], [far, far], [-far, far]])
    assert inside(points, (6, 8)).all()
