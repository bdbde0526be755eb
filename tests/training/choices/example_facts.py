"""Facts of CIFAR-10, for the tests of what is chosen."""

from vitrail.training.choices.facts import Facts


def facts(**changes):
    values = {
        "images": 40000, "height": 32, "width": 32, "grey": False, "channels": 3, "labels": ("cat", "dog"),
        "task": "classify", "cores": 2, "device": "cpu", "minutes": 0.0,
    }  # fmt: skip
    return Facts(**{**values, **changes})
