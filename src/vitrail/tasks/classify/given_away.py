"""A property of the files that gives the class away, so that a model could learn it instead of the content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from vitrail.dataset import Dataset
from vitrail.findings import Example, Finding
from vitrail.images.decode import ImageFacts, kind_of

GIVEN_AWAY = 0.5  # share of the mistakes of guessing that knowing the file type would avoid
SHOWN_IN = 0.05  # share of the images that must differ in it, so that a few oddities are no give-away


def class_given_away(dataset: Dataset, facts: Sequence[ImageFacts | None]) -> Finding | None:
    """A class of PNG files beside one of JPEG files can be told by traces of compression, which nobody means.
    `facts` of the images, in the order of the items."""
    properties: tuple[tuple[str, Callable[[ImageFacts], str]], ...] = (
        ("file type", lambda facts: facts.format),
        ("kind (grey, colour)", kind_of),
        ("size", lambda facts: f"{facts.width} x {facts.height}"),
    )
    pairs = [
        (known, item.target)
        for known, item in zip(facts, dataset.items, strict=True)
        if known is not None and isinstance(item.target, int)
    ]
    for what, value_of in properties:
        share = _told_by([(value_of(known), target) for known, target in pairs])
        if share is not None:
            title = f"the {what} of a file tells its class in {100 * share:.0f} of 100 cases"
            advice = "make it the same for all classes, or the model may learn that instead of what the images show"
            return Finding("given-away", "warning", title, advice, len(pairs), _by_class(dataset, facts, value_of))
    return None


def _told_by(pairs: list[tuple[str, int]]) -> float | None:
    """How often the class is right that most images with the same answer have; None where that is no give-away."""
    answers = Counter(answer for answer, _ in pairs)
    common = {answer for answer, count in answers.items() if count >= SHOWN_IN * len(pairs)}
    if len(common) < 2:
        return None
    best = Counter[int](target for _, target in pairs).most_common(1)[0][1]
    by_answer: dict[str, Counter[int]] = {}
    for answer, target in pairs:
        if answer in common:  # what is rare may be told apart by chance
            by_answer.setdefault(answer, Counter())[target] += 1
    right = sum(counts.most_common(1)[0][1] for counts in by_answer.values())
    avoided = (right - best) / max(1, len(pairs) - best)
    return right / len(pairs) if avoided >= GIVEN_AWAY else None


def _by_class(
    dataset: Dataset, facts: Sequence[ImageFacts | None], value_of: Callable[[ImageFacts], str]
) -> tuple[Example, ...]:
    """For each class its usual value, with one file that has it."""
    values: dict[int, Counter[str]] = {}
    for known, item in zip(facts, dataset.items, strict=True):
        if known is not None and isinstance(item.target, int):
            values.setdefault(item.target, Counter())[value_of(known)] += 1
    examples = []
    for number, counts in sorted(values.items()):
        value, count = counts.most_common(1)[0]
        file = next(
            item.path
            for known, item in zip(facts, dataset.items, strict=True)
            if item.target == number and known is not None and value_of(known) == value
        )
        note = f"{dataset.labels[number]}: {value} in {count:,} of {sum(counts.values()):,}"
        examples.append(Example((file,), note))
    return tuple(examples)
