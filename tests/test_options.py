"""An option is declared once; Python, the shell and the docs read the same declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, TypedDict, Unpack

import pytest

import vitrail
from vitrail.cli import COMMANDS, run_function
from vitrail.commands.shell import click_command, declared_by
from vitrail.options import Option, complete_options, options_of, takes_options
from vitrail.shards.shard_options import ShardOptions


class Shared(TypedDict, total=False):
    workers: Annotated[int, Option("threads", default=2, section="Running")]


class Example(Shared, total=False):
    size: Annotated[int | None, Option("pixels a side", unset="chosen")]
    fast: Annotated[bool, Option("only a quick look", default=False)]


@takes_options(Example)
def example(data: str, **options: Unpack[Example]) -> tuple[str, Example]:
    """Look at DATA."""
    return data, options


def test_defaults_are_filled_in_and_shared_options_come_last() -> None:
    assert example("a", size=3) == ("a", {"size": 3, "fast": False, "workers": 2})
    assert example(data="a")[0] == "a"
    assert list(options_of(Example)) == ["size", "fast", "workers"]


def test_a_wrong_name_is_an_error_that_names_the_right_one() -> None:
    with pytest.raises(
        TypeError, match=r"example\(\) got an unexpected keyword argument 'sizes': did you mean 'size'\?"
    ):
        example("a", sizes=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the options are size, fast, workers"):
        complete_options(Example, {"q": 1}, "example")
    with pytest.raises(TypeError, match=r"train\(\) .* 'epoch': did you mean 'epochs'"):
        vitrail.train("photos", "runs/x", epoch=2)  # type: ignore[call-arg]


def test_an_option_may_stand_alone() -> None:
    def run_example(
        where: Annotated[str | None, Option("a place", metavar="[PLACE]", alone="here")] = None,
        fast: Annotated[bool, Option("quickly")] = False,
    ) -> None:
        given.append(where)

    given: list[str | None] = []
    for words in ([], ["--where"], ["--where", "there"], ["--where", "--fast"]):
        click_command(run_example).main(words, standalone_mode=False)
    assert given == [None, "here", "there", "here"]


def test_signature_and_docstring_list_the_options() -> None:
    assert str(inspect.signature(example)).startswith("(data: 'str', *, size=None, fast=False, workers=2)")
    assert example.__doc__ is not None
    assert example.__doc__.splitlines() == [
        "Look at DATA.",
        "",
        "Options:",
        "    size: pixels a side (default: chosen)",
        "    fast: only a quick look",
        "    workers: threads (default: 2)",
    ]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("train", vitrail.train),
        ("evaluate", vitrail.evaluate),
        ("explain", vitrail.explain),
        ("serve", vitrail.serve),
        ("check", vitrail.check),
        ("make-data", vitrail.make_data),
    ],
)
def test_python_has_every_option_of_the_shell_with_the_same_default(name: str, function: Callable[..., object]) -> None:
    run = run_function(name)
    # Where a command prints or writes to; Python gets the object.
    printing = {"json", "page", "out", "png", "ignore", "label_errors"}
    printing |= set(options_of(ShardOptions))  # whose outputs are files
    python = inspect.signature(function).parameters
    for key, (option, _) in declared_by(run)[1].items():
        if key in python:
            assert key == "out" or python[key].default == option.default, key
        else:
            assert key in printing, key


def test_every_option_and_argument_is_explained() -> None:
    for run in map(run_function, COMMANDS):
        arguments, options = declared_by(run)
        for key, (option, _) in options.items():
            assert option.help, f"{run.__name__}: {key}"
            known = option.is_switch or option.metavar or option.choice_names or not option.shell
            assert known, f"{run.__name__}: {key} needs a metavar"
        assert all(argument.help and argument.metavar for argument in arguments.values())
        command = click_command(run)
        assert command.help


def test_defaults_are_of_their_options_types() -> None:
    for run in map(run_function, COMMANDS):
        for key, (option, required) in declared_by(run)[1].items():
            if option.choice_names and option.default is not None and not required:
                assert option.default in option.choice_names, f"{run.__name__}: {key}"
