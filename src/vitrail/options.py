"""An option is declared once: as a member of a TypedDict, its name and type beside an `Option` with the rest.

The same declaration serves Python (`takes_options`), the shell (`vitrail.commands.shell`) and the docs
(`docs/commands.md`). Options that commands share are TypedDicts to inherit from.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


@dataclass(frozen=True)
class Option:
    """What is to be known about an option besides its name and type. A default of False makes it a switch.

    Example: `lr: Annotated[float | None, Option("peak learning rate", metavar="RATE", parse=positive)]`.
    """

    help: str
    _: KW_ONLY
    default: Any = None
    unset: str = ""  # what None, or another default that says nothing, stands for: "recognised"
    metavar: str = ""  # how its value is called in --help
    flag: str = ""  # its name in the shell, where that is not the member's: "--from"
    parse: Callable[[str], Any] = str  # from what the shell gives; a ValueError says what is wrong
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()  # a function is called when they are needed
    several: bool = False  # may be given several times
    alone: str = ""  # the value where the option is given without one
    section: str = ""  # of --help
    shell: bool = True  # False: for Python alone

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value."""
        return self.default is False

    @property
    def choice_names(self) -> tuple[str, ...]:
        """The values that are allowed; empty: any."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def shell_name(self, name: str) -> str:
        """`--batch-size` for batch_size."""
        return self.flag or "--" + name.replace("_", "-")

    def described(self) -> str:
        """The help text with the default: 'threads that decode (default: 2)'."""
        says_nothing = self.is_switch or self.default in (None, (), "")
        default = self.unset or ("" if says_nothing else str(self.default))
        return f"{self.help} (default: {default})" if default else self.help


@functools.cache
def options_of(declaration: type) -> dict[str, Option]:
    """The options of a TypedDict by name: its own first, then those of shared sections."""
    hints = get_type_hints(declaration, include_extras=True).items()
    options = {name: option for name, hint in hints if (option := option_in(hint)) is not None}
    return dict(sorted(options.items(), key=lambda entry: bool(entry[1].section)))  # sorting is stable


def option_in(hint: Any) -> Any:
    """What stands beside the type in `Annotated[type, ...]`; None where it is not annotated."""
    return get_args(hint)[1] if get_origin(hint) is Annotated else None


def complete_options(declaration: type, given: Mapping[str, Any], function_name: str) -> dict[str, Any]:
    """The given options and the defaults of all others. A name that is none is a TypeError, as Python has it."""
    options = options_of(declaration)
    for name in given:
        if name not in options:
            close = difflib.get_close_matches(name, options, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(options)}"
            raise TypeError(f"{function_name}() got an unexpected keyword argument {name!r}: {hint}")
    return {name: option.default for name, option in options.items()} | dict(given)


def options_in(declaration: type[D], options: Mapping[str, object]) -> D:
    """Of a command's options those of one declaration, to pass on."""
    return cast(D, {name: options[name] for name in options_of(cast(Any, declaration))})


def takes_options(declaration: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For `def train(data, out, **options: Unpack[TrainOptions])`: it is called with every option, defaults filled in.

    Its signature and its docstring then list them all.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        named = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        own = {parameter.name for parameter in named}

        @functools.wraps(function)
        def call(*positional: P.args, **keywords: P.kwargs) -> R:
            given = {name: value for name, value in keywords.items() if name not in own}
            options = complete_options(declaration, given, function.__name__)
            return function(*positional, **{**options, **keywords})

        options = options_of(declaration)
        keyword_only = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
            for name, option in options.items()
        ]
        call.__signature__ = signature.replace(parameters=[*named, *keyword_only])  # type: ignore[attr-defined]
        lines = [f"    {name}: {option.described()}" for name, option in options.items()]
        call.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
        return call

    return decorate
