"""Targets by name."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.inference.label_matching import targets_for


def items(*targets: int | tuple[int, ...] | tuple[float, ...]) -> list[Item]:
    return [Item(Path(f"{place}.jpg"), target) for place, target in enumerate(targets)]


def test_classes_are_found_by_name_in_the_models_order() -> None:
    assert targets_for(items(0, 1, 0), ["cat", "owl"], ["owl", "dog", "cat"]) == [2, 0, 2]
    assert targets_for(items((0, 1), (), (1,)), ["cat", "owl"], ["owl", "dog", "cat"]) == [(0, 2), (), (0,)]


def test_numbers_are_found_by_name_and_others_left_out() -> None:
    assert targets_for(items((1.0, 2.0, 3.0)), ["a", "b", "c"], ["c", "a"], columns=True) == [(3.0, 1.0)]
    with pytest.raises(VitrailError, match="predicts 'd', which the data does not have .it has a, b.*that name"):
        targets_for(items((1.0, 2.0)), ["a", "b"], ["d"], columns=True)


def test_an_unknown_class_is_named_if_an_image_has_it() -> None:
    with pytest.raises(VitrailError, match="no class 'bird' .it has cat, dog.: rename it or take it out"):
        targets_for(items(0, 1), ["bird", "cat"], ["cat", "dog"])
    with pytest.raises(VitrailError, match="no class 'Cats', only 'cat':"):
        targets_for(items(0), ["Cats"], ["cat", "dog"])
    assert targets_for(items(1), ["bird", "cat"], ["cat", "dog"]) == [0]


def test_two_ways_to_write_an_umlaut_are_one_name() -> None:
    assert targets_for(items(0), ["Löwe"], ["x", unicodedata.normalize("NFD", "Löwe")]) == [1]


def test_a_name_that_the_model_has_twice_means_nothing() -> None:
    """ImageNet has two cranes: a bird and a machine."""
    with pytest.raises(VitrailError, match="2 classes called 'crane'"):
        targets_for(items(0), ["crane"], ["crane", "dog", "crane"])
    assert targets_for(items(0), ["dog"], ["crane", "dog", "crane"]) == [1]


def test_a_model_without_names_cannot_be_matched() -> None:
    with pytest.raises(VitrailError, match="no class names.*labels="):
        targets_for(items(0), ["dog"], None)
