"""How far layers with a window read back where an item is longer than the window.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

import torch

from attncheck.core.errors import Unsupported
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.judge.attention_span import ObservedKeys, observed_at_kernel
from attncheck.judge.config_spec import span_spec
from attncheck.media.rows import MediaRows


def window_kept(rows: MediaRows, name: str) -> Measurement:
    """No token of an item reads a key that the window of its layer ends in front of, although items
    are read both ways.
    """
    subject, count = rows.subject, rows.medium.count
    found = observed_at_kernel(subject, rows.spec(rows.row(1)))
    sizes = {each.name: _window(rows, each) for each in found}
    reached = [each for each in found if 0 < sizes[each.name] < count]
    if not reached:
        raise Unsupported(f"a {rows.kind} ({count} tokens) is not longer than a window")
    wrong = {each.name: _too_far(each, sizes[each.name]) for each in reached}
    worst = max(reached, key=lambda each: wrong[each.name])
    value, size = wrong[worst.name], sizes[worst.name]
    return AtMost(
        name,
        float(value),
        "(query, key) pairs are further apart than the window",
        positions=sum(len(each.positions) for each in reached),
        note=f"{worst.name}: a window of {size}, a {rows.kind} of {count} tokens" if value else "",
        cause=Cause("window-ignored", module=worst.name) if value else Cause(),
    )


def _window(rows: MediaRows, layer: ObservedKeys) -> int:
    """The size of the sliding window that the config states for a layer, 0 for none."""
    stated = span_spec(rows.subject.text_config, layer.module, layer.index)
    (span, *others) = stated.spans or (None,)
    return span.size if span is not None and not others and span.kind == "sliding" else 0


def _too_far(layer: ObservedKeys, size: int) -> int:
    query_T = torch.tensor(layer.positions, device=layer.reads_TS.device)
    keys = torch.arange(layer.cut, layer.stop, device=layer.reads_TS.device)
    return int((layer.reads_TS & (query_T[:, None] - keys >= size)).sum())
