"""Whether a way of asking keeps the config's promise in every layer: that says which of two answers
is the right one.
"""

from __future__ import annotations

from attncheck.core.errors import Unsupported
from attncheck.judge.judge import held_to_promise
from attncheck.judge.layers import Attended, read_layers
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject


def kept(subject: Subject, spec: ForwardSpec) -> bool:
    """Whether at least one layer could be judged on this pass, and all that could keep their
    promise.
    """
    held: list[bool] = []

    def reader(layer: Attended) -> None:
        if layer.over(spec.length):
            held.append(held_to_promise(subject.text_config, subject.model, layer).holds)

    try:
        read_layers(subject, spec, reader)
    except (Unsupported, *REFUSALS):
        return False
    return bool(held) and all(held)
