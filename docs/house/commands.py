"""The reference of the command line, from the commands themselves."""

from typing import Any

import click
import typer.main

from pdecnn.cli import app


def describe() -> str:
    """Markdown: for each command what it does, how it is called, and its options."""
    group: Any = typer.main.get_command(app)  # of click, or of typer's own copy of it
    context = click.Context(group, info_name="pdecnn")
    parts = [_command(name, command, context) for name, command in sorted(group.commands.items())]
    return "\n\n".join(parts)


def _command(name: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            option, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            rows.append(f"| `{option}` | {_plain(text)} |")
    table = "\n".join(["| | |", "|---|---|", *rows])
    return f"## {name}\n\n{_plain(command.help or '')}\n\n```text\npdecnn {name} {usage}\n```\n\n{table}"


def _plain(text: str) -> str:
    """Without what Markdown would take for marks."""
    return text.replace("\f", "").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
