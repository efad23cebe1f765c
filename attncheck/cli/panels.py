"""`--help` in titled panels of plain text. Typer draws its panels with rich, whose import takes
longer than everything else that `--help` does.
"""

from __future__ import annotations

import sys
from textwrap import fill
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from attncheck.cli.options import RARE
from attncheck.core.errors import UsageError, stop_code, unknown

ENVIRONMENT = "Every option has an environment twin: see `attncheck explain environment`."

HELP_ALL = "--help-all"
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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; `--help-all` prints the whole help instead."""
        if HELP_ALL in args:
            ctx.meta[HELP_ALL] = True
            print(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each panel, the names of rare options, and the rule for environment variables."""
        params, whole = self.get_params(ctx), ctx.meta.get(HELP_ALL, False)
        listed = [each for each in params if whole or not _is_rare(each)]
        _write(formatter, [(_panel(each), each.get_help_record(ctx)) for each in listed])
        rare = [each.opts[0] for each in params if each not in listed]
        formatter.write_paragraph()
        if rare:
            text = f"More ({HELP_ALL}): {' '.join(rare)}"
            formatter.write(fill(text, formatter.width, break_on_hyphens=False) + "\n")
        if any(getattr(each, "envvar", None) for each in params):
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


def _is_rare(listed: Any) -> bool:
    return str(getattr(listed, "rich_help_panel", "")).endswith(RARE)


def _panel(listed: Any) -> str:
    panel = getattr(listed, "rich_help_panel", None)
    usual = "Arguments" if getattr(listed, "param_type_name", "") == "argument" else "Options"
    return panel.removesuffix(RARE) if isinstance(panel, str) else usual


def _write(formatter: Any, rows: list[tuple[str, Any]]) -> None:
    panels: dict[str, list[Any]] = {}
    for panel, row in rows:
        if row is not None:
            panels.setdefault(panel, []).append(row)
    for title, listed in panels.items():
        with formatter.section(title):
            formatter.write_dl(listed)
