"""`--help` in titled panels of plain text. Typer draws its panels with rich, whose import takes
longer than everything else that `--help` does.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from attncheck.core.errors import UsageError, stop_code, unknown

ENVIRONMENT = "Every option has an environment twin: see `attncheck explain environment`."

TARGET_SIGNS = (":", "/", ".")
"""What the name of a model has and no command does."""


class PanelCommand(TyperCommand):
    """A command whose help lists its options by panel, and which says that it was interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and the signals that end it give their own exit codes."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            print("attncheck: interrupted", file=sys.stderr)
            raise typer.Exit(stop_code(stop)) from stop

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each panel, and the rule for environment variables."""
        rows = [(_panel(each), each.get_help_record(ctx)) for each in self.get_params(ctx)]
        _write(formatter, rows)
        if any(getattr(each, "envvar", None) for each in self.get_params(ctx)):
            formatter.write_paragraph()
            formatter.write_text(ENVIRONMENT)


class PanelGroup(TyperGroup):
    """The list of commands by panel."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word.

        Raises:
            UsageError: there is none; the nearest one is offered, or `run` for a target.
        """
        word = args[0]
        if word in self.commands or word.startswith("-"):
            return super().resolve_command(ctx, args)
        if any(sign in word for sign in TARGET_SIGNS):
            raise UsageError(f"no command `{word}`: did you mean `attncheck run {word}`?")
        raise UsageError(unknown("command", word, self.commands))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each panel of commands."""
        width = formatter.width - 6 - max(map(len, self.commands))
        rows = [
            (_panel(each), (name, each.get_short_help_str(width)))
            for name, each in self.commands.items()
        ]
        _write(formatter, rows)


def _panel(listed: Any) -> str:
    panel = getattr(listed, "rich_help_panel", None)
    usual = "Arguments" if getattr(listed, "param_type_name", "") == "argument" else "Options"
    return panel if isinstance(panel, str) else usual


def _write(formatter: Any, rows: list[tuple[str, Any]]) -> None:
    panels: dict[str, list[Any]] = {}
    for panel, row in rows:
        if row is not None:
            panels.setdefault(panel, []).append(row)
    for title, listed in panels.items():
        with formatter.section(title):
            formatter.write_dl(listed)
