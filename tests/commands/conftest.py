"""Commands are run on the models and pictures of the tests of inference."""

from tests.inference.conftest import float32, photos, picture, save

__all__ = ["float32", "photos", "picture", "save"]
