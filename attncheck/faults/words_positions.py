"""Faults of which position a token has, in words. Standard library only."""

from __future__ import annotations

from attncheck.faults.entry import Entry

ENTRIES = (
    Entry(
        name="position-restart",
        what="Each call on a cache counts its positions from 0 again.",
        looks="One forward is right; the second chunk and every decode step are wrong. Text turns to repetition "
        "after the prompt.",
        origin="`arange(T)` where the length of the cache should be added; a cache under a new name whose length is "
        "read as 0; a serving layer that sends only the new tokens' positions.",
        change="Start at the length of the cache: `arange(P, P + T)`, or pass `position_ids` yourself.",
    ),
    Entry(
        name="position-offset",
        what="Positions on a cache are off by a constant.",
        looks="Chunks on a cache differ slightly from one forward; rotary models hide it when the prefill has the same offset.",
        origin="The length of the cache read after it was updated; a prefix or an image counted twice; pad + 1 rules"
        " that are applied in one path only.",
        change="Read the length of the cache before the new keys are stored, and apply the same rule in every path.",
    ),
    Entry(
        name="position-frozen",
        what="Every new token gets the same position.",
        looks="Single steps look almost right, longer chunks on a cache do not; generation loops.",
        origin="A step counter that is not advanced; `position_ids[:, -1:]` used for several tokens.",
        change="Advance positions with every token, also inside a chunk.",
    ),
    Entry(
        name="position-ignores-padding",
        what="With left padding, positions count the padding too (or do not, where they should).",
        looks="The same prompt has other logits when padded; only models with absolute positions show it.",
        origin="`arange` instead of `cumsum(attention_mask) - 1`; a generate() that prepares positions and a forward"
        " that does not.",
        change="Derive positions from the mask, `attention_mask.cumsum(-1) - 1`, in forward and in generate alike.",
    ),
    Entry(
        name="position-ids-ignored",
        what="`position_ids` are accepted and thrown away.",
        looks="Other positions give the same logits; packed rows and serving engines that pass positions get wrong "
        "answers silently.",
        origin="An argument swallowed by `**kwargs`; a cached rotary table indexed by the length alone.",
        change="Use the positions that are passed, or refuse the argument.",
    ),
    Entry(
        name="attention-mask-ignored",
        what="`attention_mask` is accepted and thrown away.",
        looks="Padding, packing and custom masks change nothing; batches of unequal length are wrong.",
        origin="An implementation that supports only `is_causal`; a wrapper that forgets to pass the mask on.",
        change="Pass the mask down to the kernel, or refuse it loudly.",
    ),
    Entry(
        name="key-rotated-twice",
        what="Cached keys are rotated again when they are read.",
        looks="The first chunk is right; every later call is wrong, and the more so the further back a key is.",
        origin="Keys stored after rotation and rotated on reading; a re-rotating cache (attention sinks) on top of a"
        " model that rotates by itself.",
        change="Store keys either before or after rotation and rotate once.",
    ),
    Entry(
        name="rope-scale-switch",
        what="The rotary scale changes with the length while cached keys keep the old one.",
        looks="Right below the switch length; beyond it cached and uncached logits differ. The keys of the first "
        "tokens were turned with one base, the queries with another.",
        origin="Dynamic NTK and LongRoPE do this by construction: it is the scheme, not this model's code.",
        change="Fix the scale for the length that you serve (`factor` and the original length in the config), or "
        "fill the cache anew when the switch is crossed.",
    ),
    Entry(
        name="alibi-local",
        what="Linear biases are counted within the chunk instead of over the whole history.",
        looks="One forward is right, chunks on a cache are wrong; a single step may be right by luck.",
        origin="The bias built from the length of the new tokens instead of the keys; a mask of the new tokens only.",
        change="Build the bias from the absolute positions of the queries and of all keys, the cached ones included.",
    ),
)
