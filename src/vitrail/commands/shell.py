"""From a function to a click command: its parameters and options become arguments, options and help texts.

A command is a function `run_NAME` that gives an exit code, or None for 0. Each parameter is
`Annotated[type, Argument(...)]` or `Annotated[type, Option(...)]`, whose default is the parameter's; `**options` are a
TypedDict of options. Its docstring is what --help says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

import click
from click.shell_completion import CompletionItem

from vitrail.options import Option, option_in, options_of


@dataclass(frozen=True)
class Argument:
    """A positional argument of a command. It may be left out where the parameter has a default."""

    help: str
    metavar: str
    several: bool = False
    choices: tuple[str, ...] = ()


def click_command(run: Callable[..., int | None]) -> click.Command:
    """The command that calls `run` with what was given; defaults are the function's own."""
    arguments, options = declared_by(run)

    def call(**values: Any) -> int:
        given = {
            key: value for key, value in values.items() if value is not None and value is not False and value != ()
        }
        return run(**given) or 0

    signature = inspect.signature(inspect.unwrap(run)).parameters
    may_be_left_out = {key for key, parameter in signature.items() if parameter.default is not parameter.empty}
    parameters: list[click.Parameter] = [
        click.Argument([key], type=_argument_type(argument), nargs=-1 if argument.several else 1,
                       required=key not in may_be_left_out, metavar=argument.metavar)
        for key, argument in arguments.items()
    ]  # fmt: skip
    shell_options = {key: entry for key, entry in options.items() if entry[0].shell}
    parameters += [_click_option(key, option, required) for key, (option, required) in shell_options.items()]
    sections = {key: option.section for key, (option, _) in options.items()}
    return _Command(
        command_name(run),
        callback=call,
        params=parameters,
        help=" ".join((inspect.unwrap(run).__doc__ or "").split()),
        arguments=[(argument.metavar, argument.help) for argument in arguments.values()],
        sections=sections,
    )


def command_name(run: Callable[..., int | None]) -> str:
    """'make-data' for `run_make_data`."""
    return run.__name__.removeprefix("run_").replace("_", "-")


def declared_by(run: Callable[..., int | None]) -> tuple[dict[str, Argument], dict[str, tuple[Option, bool]]]:
    """The arguments and options of a command by name, an option with whether it must be given."""
    function = inspect.unwrap(run)
    hints = get_type_hints(function, include_extras=True)
    arguments: dict[str, Argument] = {}
    options: dict[str, tuple[Option, bool]] = {}
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options |= {key: (option, False) for key, option in options_of(get_args(hints[name])[0]).items()}
        elif isinstance(declared := option_in(hints[name]), Argument):
            arguments[name] = declared
        else:
            required = parameter.default is parameter.empty
            options[name] = (declared if required else replace(declared, default=parameter.default), required)
    return arguments, options


class ParsedText(click.ParamType):
    """A value that one of our own parsers reads: its ValueError is what the user is told."""

    def __init__(self, parse: Callable[[str], Any], completes: str = "") -> None:
        self.parse, self.name, self.completes = parse, parse.__name__, completes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self.completes)] if self.completes else []


def _argument_type(argument: Argument) -> click.ParamType:
    return click.Choice(argument.choices) if argument.choices else ParsedText(str, completes="file")


def _click_option(name: str, option: Option, required: bool) -> click.Option:
    names, text = [option.shell_name(name), name], option.described()
    if option.is_switch:
        return click.Option(names, is_flag=True, help=text)
    kind: click.ParamType
    if option.choice_names:
        kind = click.Choice(option.choice_names)
    else:
        completes = "dir" if option.metavar in ("DIR", "RUN") else "file" if "FILE" in option.metavar else ""
        kind = ParsedText(option.parse, completes)
    metavar = option.metavar or None
    if option.alone:
        return click.Option(names, type=kind, metavar=metavar, is_flag=False, flag_value=option.alone, help=text)
    return click.Option(names, type=kind, metavar=metavar, multiple=option.several, help=text, required=required)


class _Command(click.Command):
    """Its --help lists the arguments, and the options section by section."""

    def __init__(self, *args: Any, arguments: list[tuple[str, str]], sections: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arguments, self.sections = arguments, sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": list(self.arguments)}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                rows.setdefault(self.sections.get(parameter.name or "") or "Options", []).append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)
