"""Writes docs/commands.md from the declarations of the commands: `make docs`, or `python docs/write_commands.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from vitrail.cli import COMMANDS, run_function
from vitrail.commands.shell import click_command, declared_by
from vitrail.options import Option

PAGE = Path(__file__).with_name("commands.md")
INTRODUCTION = """\
# Commands

<!-- Written by docs/write_commands.py from src/vitrail/commands: change it there, then run `make docs`. -->

Every command with its arguments and options. `vitrail COMMAND --help` prints the same.

In Python an option is a keyword of the function of the same name, with the same default. These two do the same:
`vitrail train photos --out runs/first --epochs 2` and `vitrail.train("photos", "runs/first", epochs=2)`. A keyword has
`_` where the option has `-`; where its name is another, that stands beside the option. `predict` is
`vitrail.load(MODEL).predict(images)` in Python ([Using a model](using.md)), and `search` is
`vitrail.ImageIndex(INDEX).search(image)` ([Embeddings and search](search.md)).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | done, and something was wrong: `check` found an error, or an image could not be read |
| 2 | a mistake in the command or its input; the last line says which |
| 130 | stopped by Ctrl-C |
"""
COMPLETION = """\
## Completion

Your shell can complete commands, options, their values and file names after one line in its start-up file:

| shell | file | line |
|---|---|---|
| bash | `~/.bashrc` | `eval "$(_VITRAIL_COMPLETE=bash_source vitrail)"` |
| zsh | `~/.zshrc` | `eval "$(_VITRAIL_COMPLETE=zsh_source vitrail)"` |
| fish | `~/.config/fish/completions/vitrail.fish` | `_VITRAIL_COMPLETE=fish_source vitrail \\| source` |
"""


def page() -> str:
    """The whole of docs/commands.md."""
    return "\n".join([INTRODUCTION, *(section(name) for name in COMMANDS), COMPLETION])


def section(name: str) -> str:
    run = run_function(name)
    arguments, options = declared_by(run)
    usage = " ".join([f"vitrail {name}", *(argument.metavar for argument in arguments.values()), "[options]"])
    summary, description = COMMANDS[name], click_command(run).help or ""
    lines = [f"## {name}", "", f"{summary[0].upper()}{summary[1:]}. {description}", "", f"    {usage}", ""]
    lines += table("argument", ((f"`{cell(a.metavar)}`", cell(a.help)) for a in arguments.values()))
    for title in dict.fromkeys(option.section for option, _ in options.values()):
        entries = [(key, *entry) for key, entry in options.items() if entry[0].section == title and entry[0].shell]
        lines += table(title or "option", (row(*entry) for entry in entries))
    python_only = {key: option for key, (option, _) in options.items() if not option.shell}
    lines += table("in Python only", ((f"`{key}`", cell(option.described())) for key, option in python_only.items()))
    return "\n".join(lines)


def row(key: str, option: Option, required: bool) -> tuple[str, str]:
    value = "" if option.is_switch else " " + (option.metavar or "\\|".join(option.choice_names))
    flag = option.shell_name(key)
    alias = "" if flag == "--" + key.replace("_", "-") else f" (`{key}`)"
    return f"`{cell(flag + value)}`{alias}", cell(option.described()) + (" (must be given)" if required else "")


def table(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [f"| {left} | {right} |" for left, right in rows]
    if lines:
        yield from [f"| {title} | |", "|---|---|", *lines, ""]


def cell(text: str) -> str:
    return text.replace("\\|", "|").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
