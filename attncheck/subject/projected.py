"""What became of a projection's heads on their way to the kernel: how they were turned, and in which order they stand."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.errors import Unsupported
from attncheck.finding import Measurement, skipped
from attncheck.subject.head_order import OrderReader, order_cases
from attncheck.subject.layers import Attended, read_layers
from attncheck.subject.passes import Pass
from attncheck.subject.rotation import RotationReader, rotation_cases
from attncheck.subject.subject import Subject


def projection_cases(subject: Subject) -> Iterator[Measurement]:
    """Rotation and order of heads in one forward; skipped with the reason where no attention can be watched."""
    tokens = subject.inputs.tokens
    rotation, order = RotationReader(subject, len(tokens[0])), OrderReader(len(tokens[0]))

    def both(layer: Attended) -> None:
        rotation(layer)
        order(layer)

    try:
        read_layers(subject, Pass(tokens), both)
    except Unsupported as reason:
        yield skipped("rotation of every layer", str(reason))
        return
    yield from rotation_cases(rotation)
    yield from order_cases(order)
