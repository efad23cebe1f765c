"""`attncheck explain NAME`: the documentation of a probe or a fault, from its source."""

from __future__ import annotations

from collections.abc import Collection

import typer

from attncheck.cli.options import argument, expanded
from attncheck.core import registry
from attncheck.core.errors import UsageError, unknown
from attncheck.faults import registry as faults

ENVIRONMENT = """environment

Every option can be set by an environment variable: --device-map by ATTNCHECK_DEVICE_MAP, and so on.
An option on the command line wins. A flag is set by 1 and not set by 0. Values of repeatable
options are separated by blanks, those of --prompt and --report by line ends.
"""
TRAP = "trap-"
"""Before the name of a trap, which a run lists."""


@expanded
def explain(name: str = argument("A probe, a fault or a trap.", "NAME")) -> None:
    """Print the documentation of one probe, fault or trap."""
    typer.echo(page(name))


def page(name: str) -> str:
    """The page of a probe or of a fault, from its docstring; of a trap, measured now.

    Raises:
        UsageError: it is none of them; the nearest name is offered.
    """
    probes = registry.documented()
    if name in probes:
        return f"{name}\n\n{registry.documentation(name)}"
    if name in faults.names():
        return faults.documentation(name)
    if name == "environment":
        return ENVIRONMENT
    if name.startswith(TRAP):
        return _trap_page(name.removeprefix(TRAP), probes)
    raise UsageError(unknown("probe or fault", name, [*probes, *faults.names()]))


def _trap_page(name: str, probes: Collection[str]) -> str:
    """What a trap is and what the reference models give, measured now: nothing here lists traps."""
    owner = max((each for each in probes if name.startswith(f"{each}-")), key=len, default="")
    if not owner:
        raise UsageError(unknown("trap, which begins with its probe,", name, probes))
    from attncheck.run.traps import shown_traps

    found = shown_traps(registry.load(owner))
    if name not in found:
        raise UsageError(unknown(f"trap of `{owner}` in this version of the library", name, found))
    return found[name]
