"""What became of a projection's heads on their way to the kernel: how they were turned, in which
order, in whose layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Measurement, skipped
from attncheck.judge.head_order import OrderReader, order_cases
from attncheck.judge.layers import Attended, read_layers
from attncheck.judge.rotation import RotationReader, rotation_cases
from attncheck.judge.shared_keys import SharedReader, shared_cases
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def projection_cases(subject: Subject) -> Iterator[Measurement]:
    """Rotation, order of heads and shared keys in one forward; skipped with the reason where no
    attention can be watched.
    """
    tokens = subject.inputs.tokens
    length = len(tokens[0])
    rotation, order, shared = (
        RotationReader(subject, length),
        OrderReader(length),
        SharedReader(subject.text_config, length),
    )

    def all_three(layer: Attended) -> None:
        for reader in (rotation, order, shared):
            reader(layer)

    try:
        read_layers(subject, ForwardSpec(tokens), all_three)
    except Unsupported as reason:
        yield skipped("rotation of every layer", str(reason))
        return
    yield from rotation_cases(rotation)
    yield from order_cases(order)
    yield from shared_cases(shared)
