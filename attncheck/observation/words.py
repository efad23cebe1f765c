"""What was measured, in sentences that a maintainer understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attncheck.core.observed_part import ObservedPart
from attncheck.observation.rules import cell_rule
from attncheck.observation.scores import HEADS, MISSING, RESTARTED, TIMES
from attncheck.observation.summary import Extent, Group, ranges

CALLS = {
    "prefill": "in the first call",
    "chunk": "in calls of several tokens on a cache",
    "step": "in calls of one token on a cache",
}
ON_A_CACHE = f", {CALLS['chunk']}, {CALLS['step']}"
ROTATIONS = {
    "restart": "are rotated as if positions restarted at 0 in each call",
    "frozen": "are rotated as if all had the position of the first token of their call",
    "twice": "are rotated twice",
    "again": "are rotated again in each call",
    "not rotated": "are not rotated",
}
PLACES = {
    "restart": "are those of positions that restart at 0 in each call",
    "frozen": "are those of the first position of their call",
}
NOUNS = {
    "queries": "queries",
    "context": "outputs of the kernel",
    "hidden": "outputs of {}",
    "logits": "logits",
    "state": "states ({}) that a layer finds",
}
SIMPLE = {
    "zero": "are zero",
    "another function": "are no vectors of the trusted path",
    "other head": "are those of other heads",
    "reordered": "have their entries in another order",
    "weighted": "are multiplied channel by channel, as by the weight of a norm",
    "moved": "have the same vector added at every token, as by another bias",
    "bias": "lack the bias of that module",
    "other sequence": "are those of another sequence",
    "lost": "are zero, which is not what it left",
    "other call": "are those of an earlier call",
}
FEW = 4
"""Stretches of channels that are still told one by one."""
HELD = ("other token", "zero")
"""How states differ whose tokens are known."""
SCORES = {
    "cap": "the soft-cap of the scores differs",
    "sinks": "the sinks are left out",
    "bias": "the bias on the scores is not the specified one",
}


def worded(groups: Sequence[Group], extent: Extent) -> list[Group]:
    """The same groups, each part with its text."""
    return [replace(group, part=replace(group.part, text=_text(group, extent))) for group in groups]


def sentence(groups: Sequence[Group]) -> str:
    """All parts in one sentence; keys and values with the same change are named together."""
    texts: dict[str, list[str]] = {}
    for group in groups:
        what, _, rest = group.part.text.partition(" ")
        if group.part.what in ("keys", "values"):
            texts.setdefault(rest, []).append(what)
        else:
            texts.setdefault(group.part.text, [])
    joined = [
        f"{' and '.join(sorted(whats))} {rest}" if whats else rest for rest, whats in texts.items()
    ]
    return "; ".join(_by_change(joined))


def _by_change(texts: Sequence[str]) -> list[str]:
    """Texts of several subjects that say the same of each become one."""
    changes: dict[str, list[str]] = {}
    for text in texts:
        subject, are, change = text.partition(" are ")
        changes.setdefault(f"{are}{change}", []).append(subject)
    return [" and ".join(subjects) + change for change, subjects in changes.items()]


def _text(group: Group, extent: Extent) -> str:
    return f"{_what(group, extent)}{_where(group.part)}"


def _what(group: Group, extent: Extent) -> str:
    part = group.part
    if part.what == "cells":
        return cell_rule(group.members, extent).text
    if part.what == "scores":
        return _scores(group)
    if part.what == "state" and part.how in HELD and any(each.at >= 0 for each in group.members):
        return _held(group)
    if part.what in ("keys", "values"):
        subject = (
            f"{part.what} of {_tokens(part.slots)}" if part.slots else f"{part.what} in the cache"
        )
    elif part.what in NOUNS:
        first = group.members[0]
        noun = NOUNS[part.what].format(first.module)
        noun = noun.replace("outputs", "inputs", 1) if first.entering else noun
        subject = f"{noun} at {ranges(part.positions)}" if part.positions else noun
    else:
        subject = part.what
    return f"{subject} {_verb(group)}"


def _scores(group: Group) -> str:
    part, largest = group.part, [each.amount for each in group.members if each.amount is not None]
    if part.how == "bias" and part.dtype == "bool":
        return "a mask is added to the scores as ones and zeros, and hides nothing"
    if part.how == "bias" and largest:
        return f"a bias of up to {max(largest):.6g} is added to the scores, where none is specified"
    if part.how == "bias" and part.dtype == MISSING:
        return "the specified bias is not added to the scores"
    if part.how == "bias" and part.dtype == RESTARTED:
        return "the bias on the scores is that of queries whose positions restart at 0"
    if part.how == "bias" and part.dtype == HEADS:
        return "the biases on the scores are those of other heads"
    if part.how == "bias" and part.dtype.startswith(TIMES):
        return f"the specified bias is added to the scores {part.dtype}"
    if part.how == "scaled":
        return f"the scores are multiplied by {part.amount:.6g}"
    if part.how == "dtype":
        return f"the softmax is computed in {part.dtype}"
    return SCORES.get(part.how, "the scores differ")


def _held(group: Group) -> str:
    """What convolution states hold after the first call that leaves them wrong."""
    first = min(each.start for each in group.members)
    members = [each for each in group.members if each.start == first]
    sources = {each.source[2] for each in members if each.source is not None}
    held = _tokens(tuple(sources)) if sources else "zeros"
    places = {each.at for each in members if each.at >= 0}
    newest = "in their order" if places == sources else _tokens(tuple(places))
    return f"states ({group.members[0].module}) that a layer leaves hold {held}, not {newest}"


def _verb(group: Group) -> str:
    part = group.part
    if part.how == "rotated":
        return ROTATIONS.get(group.rule) or _rotated(group)
    if part.how == "rounded":
        return f"are rounded to {part.dtype}"
    if part.how == "scaled":
        scaled = f"multiplied by {part.amount:.6g}" if part.amount is not None else "scaled"
        return f"are {scaled}{_channels(group)}"
    if part.how == "other layer":
        return (
            f"are those of layer {part.amount:g}"
            if part.amount is not None
            else "are those of other layers"
        )
    if part.how == "other token":
        return _moved(group)
    if part.how == "other sequence":
        sources = {each.source[0] for each in group.members if each.source is not None}
        return f"are those of sequence {ranges(sources)}" if len(sources) == 1 else SIMPLE[part.how]
    text = SIMPLE.get(part.how, f"differ ({part.how})")
    return f"{text}{_channels(group)}"


def _channels(group: Group) -> str:
    """Which channels of the vectors differ, where the same others never do."""
    found = {channel for each in group.members for channel in each.channels}
    if not all(each.channels for each in group.members):
        return ""
    if ranges(found).count(",") >= FEW:
        return "" if group.part.how == "another function" else " in some channels"
    return f" in channels {ranges(found)}"


def _rotated(group: Group) -> str:
    amount, bases = group.part.amount, {each.base for each in group.members}
    if len(bases) == 1 and None not in bases:
        return f"are rotated with base {bases.pop():.6g}"
    if amount is None:
        if any(each.amount is None for each in group.members):
            return "are rotated by angles that no position gives"
        places = {each.at + each.amount for each in group.members if each.amount is not None}
        if all(place.is_integer() for place in places):
            return f"are rotated as if at positions {ranges(map(int, places))}"
        return "are rotated to other positions"
    count = f"{abs(amount):g} position{'s' if abs(amount) != 1 else ''}"
    return f"are rotated {count} too {'far' if amount > 0 else 'little'}"


def _moved(group: Group) -> str:
    amount = group.part.amount
    if group.rule in PLACES:
        return PLACES[group.rule]
    if amount is not None and amount:
        way = "before" if amount < 0 else "after"
        return f"are those of the token {abs(amount):g} {way}"
    sources = [each.source[2] for each in group.members if each.source is not None]
    return f"are those of {_tokens(sources)}"


def _tokens(numbers: Sequence[int]) -> str:
    return f"token{'s' if len(set(numbers)) > 1 else ''} {ranges(numbers)}"


def _where(part: ObservedPart) -> str:
    """The layers, heads, sequences and calls, where not all have it."""
    limits = (("layer", part.layers), ("head", part.heads), ("sequence", part.rows))
    places = [
        f"{name}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
        for name, numbers in limits
        if numbers
    ]
    texts = [f"in {', '.join(places)}"] if places else []
    texts += [CALLS[each] for each in part.when]
    return "".join(f", {text}" for text in texts).replace(ON_A_CACHE, ", in calls on a cache")
