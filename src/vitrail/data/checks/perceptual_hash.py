"""Finding images that look the same: resized, compressed again, a little brighter or darker.

Two steps. A hash of 64 bits, each telling whether the picture gets brighter from one of 9 x 8 fields to the next,
brings together what may be alike. A picture of 16 x 16 pixels then decides, so that what is merely composed alike is
not called a copy. Crops, mirror images and turned ones are not found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # of the small picture
RADIUS = 7  # bits that may differ; compressing at quality 20 or halving the size changes at most 6 of 99 in 100 photos
CORRELATION = 0.97  # of the small pictures, whatever their brightness and contrast
RESIDUE = 5.0  # grey levels that remain when brightness and contrast are matched
FLAT = 6  # grey levels from the darkest to the brightest field: nothing to compare by

_BANDS, _BITS = 4, 16  # 4 bands of 16 bits: of 7 changed bits, at most one falls into some band
_NEIGHBOURS, _ACROSS = 64, 16  # at most so many are compared with each in a crowd: groups hang together by less
_CHUNK = 1 << 20  # pairs in memory at once

Hashes = NDArray[np.uint64]
Small = NDArray[np.uint8]  # (N, SIDE, SIDE, 3)
Places = NDArray[np.intp]
Pairs = tuple[Places, Places]


class Signature(NamedTuple):
    """What one picture is known again by."""

    hash: int
    small: Small  # (SIDE, SIDE, 3)


def signature_of(pixels: NDArray[np.uint8]) -> Signature:
    """Of a picture, uint8 (H, W, C)."""
    return Signature(hash_picture(pixels), small_picture(pixels))


def small_picture(pixels: NDArray[np.uint8]) -> Small:
    """uint8 (H, W, C) -> (SIDE, SIDE, 3). Of many channels the first three."""
    colour = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    return np.asarray(Image.fromarray(np.ascontiguousarray(colour)).resize((SIDE, SIDE), Image.Resampling.BOX))


def hash_picture(pixels: NDArray[np.uint8]) -> int:
    """The 64 bits of the hash of a picture, uint8 (H, W, C)."""
    if pixels.shape[2] == 3:
        grey = Image.fromarray(pixels).convert("L")
    else:
        grey = Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
    fields = np.asarray(grey.resize((9, 8), Image.Resampling.BOX)).astype(np.int16)
    return int.from_bytes(np.packbits(fields[:, 1:] > fields[:, :-1]).tobytes(), "big")


def is_flat(small: Small) -> bool:
    """Whether a picture is of one colour all over, so far as its small copy tells."""
    return bool((small.max(axis=(0, 1)).astype(int) - small.min(axis=(0, 1))).max() < FLAT)


def alike(hashes: Hashes, small: Small) -> list[list[int]]:
    """Groups of places that look the same, each sorted, in the order of their first."""
    if len(hashes) < 2:
        return []
    roots, rows = np.arange(len(hashes)), small.reshape(len(hashes), -1)
    for first, second in _equal(hashes):
        roots = _tied(roots, rows, first, second)
    one_each = np.unique(np.stack([hashes, roots.astype(np.uint64)]), axis=1, return_index=True)[1]
    for first, second in _candidates(hashes[one_each]):
        roots = _tied(roots, rows, one_each[first], one_each[second])
    groups: dict[int, list[int]] = {}
    for place, root in enumerate(roots.tolist()):
        groups.setdefault(root, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


# ---- parts


def _equal(hashes: Hashes) -> Iterator[Pairs]:
    """Pairs with the same hash, each with the few next to it: thousands of frames of one scene are one group soon."""
    order = np.argsort(hashes, kind="stable")
    for step in (1, 2, 3, 5, 8):
        first, second = order[:-step], order[step:]
        equal = hashes[first] == hashes[second]
        yield first[equal], second[equal]


def _candidates(hashes: Hashes) -> Iterator[Pairs]:
    """Pairs at most RADIUS bits apart, some of them more than once. Hashes that far apart agree in one of the bands but
    for one bit at most, so only those in neighbouring drawers of a band are compared, not all with all."""
    keys = _spread(hashes)
    for band in range(_BANDS):
        drawer = ((keys >> np.uint64(_BITS * band)) & np.uint64((1 << _BITS) - 1)).astype(np.int64)
        order = np.lexsort((keys, drawer))  # by the whole hash inside a drawer: the like lie side by side
        starts = np.searchsorted(drawer[order], np.arange((1 << _BITS) + 1))
        places = np.arange(len(keys))
        yield from _pairs(keys, order, places, places + 1, starts[drawer[order] + 1], _NEIGHBOURS)
        for bit in range(_BITS):
            clear = places[(drawer[order] >> bit & 1) == 0]
            across = drawer[order][clear] | (1 << bit)
            yield from _pairs(keys, order, clear, starts[across], starts[across + 1], _ACROSS)


def _spread(hashes: Hashes) -> Hashes:
    """The same hashes with their bits dealt to the bands in turn, the telling ones first. Sets with a common background
    have many bits that are always 0; a band of nothing else would put all images into one drawer."""
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)  # (N, 64)
    telling = np.argsort(np.abs(bits.mean(axis=0) - 0.5), kind="stable")
    dealt = np.concatenate([telling[band::_BANDS] for band in range(_BANDS)])
    packed = np.ascontiguousarray(np.packbits(bits[:, dealt], axis=1))
    return packed.view(">u8").ravel().astype(np.uint64)


def _pairs(keys: Hashes, order: Places, places: Places, start: Places, stop: Places, limit: int) -> Iterator[Pairs]:
    """Each of the places with those from start to stop, where the hashes are close enough."""
    lengths = np.clip(stop - start, 0, limit)
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, np.arange(0, lengths.sum(), _CHUNK), side="right").tolist()
    for begin, end in zip(cuts, [*cuts[1:], len(lengths)], strict=False):  # no cuts where there are no pairs
        many = lengths[begin:end]
        offsets = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        first = order[np.repeat(places[begin:end], many)]
        second = order[np.repeat(start[begin:end], many) + offsets]
        close = _bit_count(keys[first] ^ keys[second]) <= RADIUS
        yield first[close], second[close]


_OF_16_BITS = np.array([bin(number).count("1") for number in range(1 << 16)], dtype=np.uint8)


def _bit_count(values: Hashes) -> NDArray[np.integer]:
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(values)
    return _OF_16_BITS[values.view(np.uint16).reshape(-1, 4)].sum(axis=1)


def _look_same(small: Small, first: Places, second: Places) -> NDArray[np.bool_]:
    same = np.zeros(len(first), dtype=bool)
    for start in range(0, len(first), 4096):
        piece = slice(start, start + 4096)
        one, other = _centred(small[first[piece]]), _centred(small[second[piece]])
        spread = np.maximum(one.std(axis=1), other.std(axis=1))
        scale = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
        correlation = (one * other).sum(axis=1) / np.maximum(scale, 1e-6)
        residue = spread * np.sqrt(np.clip(1 - correlation**2, 0, 1))
        same[piece] = (correlation >= CORRELATION) & (residue <= RESIDUE)
    return same


def _centred(pictures: Small) -> NDArray[np.float32]:
    values = pictures.astype(np.float32)
    return values - values.mean(axis=1, keepdims=True)


def _tied(roots: Places, small: Small, first: Places, second: Places) -> Places:
    """The smallest place that each place hangs together with, now that those of the pairs that look the same do.

    scipy.sparse.csgraph.connected_components wants all pairs at once; here they come in pieces, and what hangs together
    already is not compared again."""
    apart = roots[first] != roots[second]
    first, second = first[apart], second[apart]
    same = _look_same(small, first, second)
    first, second = first[same], second[same]
    while len(first):
        one, other = roots[first], roots[second]
        np.minimum.at(roots, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(roots, roots[roots]):
            roots = roots[roots]
        apart = roots[first] != roots[second]
        first, second = first[apart], second[apart]
    return roots
