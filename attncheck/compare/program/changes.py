"""What an operator may be in another model: each possible change, with its name and its words.

A change replaces operators and is tried where the other model no longer has a value. It says what
the other model does otherwise, so that no catalogue of architectures is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.compare.flow import FlowTape
from attncheck.compare.program.change import OpChange
from attncheck.compare.program.functions import function_changes
from attncheck.compare.program.measured import measured_changes
from attncheck.compare.program.modules import module_changes
from attncheck.compare.program.reads import read_changes
from attncheck.compare.program.record import Program
from attncheck.compare.program.weights import weight_changes


def changes_at(program: Program, at: int, tape: FlowTape, slack: float) -> Iterator[OpChange]:
    """Every change of an operator and of what it reads directly."""
    yield from function_changes(program, at)
    yield from measured_changes(program, at, tape, slack)
    yield from module_changes(program, at)
    yield from weight_changes(program, at)
    yield from read_changes(program, at)
