"""Faults of who may read whom, in words. Standard library only."""

from __future__ import annotations

from attncheck.faults.entry import Entry

ENTRIES = (
    Entry(
        name="causal-mask-missing",
        what="Queries read keys that come after them: within one forward every token sees the whole block.",
        looks="Replacing a later token moves earlier logits. Training loss is far too low, generation is poor, and "
        "prefill disagrees with token-by-token decoding, which cannot see the future.",
        origin="`is_causal` not passed on when no mask is given; a decoder built on an encoder class; a mask that is"
        " only built in the set-up of the cache; one attention implementation that expects the caller to "
        "bring the mask.",
        change="Build the causal mask in the forward itself, in every implementation, and pass `is_causal=True` "
        "where the kernel gets no mask.",
    ),
    Entry(
        name="mask-off-by-one",
        what="The diagonal of the causal mask is shifted: each query reads one key too many, the one after its own.",
        looks="Only the next token moves the present logits; the loss collapses in training because the label is visible.",
        origin="`tril(diagonal=1)` or `triu(diagonal=2)`, `<=` against `<` on positions that already count from one.",
        change="Allow key j for query i exactly when j <= i: `tril(diagonal=0)`, counted from the end of the cache.",
    ),
    Entry(
        name="mask-top-left",
        what="On a filled cache the causal triangle starts at the first key instead of the first new one: query i "
        "of a chunk reads keys 0..i, and most of the history is hidden.",
        looks="One forward is right and chunks on a cache are wrong, even with the right positions; single steps "
        "may be right where no mask is built for one query.",
        origin="`is_causal=True` of a fused kernel with fewer queries than keys; `ones(T, S).tril()` without the offset.",
        change="Shift the diagonal by the number of cached tokens: `tril(diagonal=S - T)`, or a lower-right aligned bias.",
    ),
    Entry(
        name="window-off-by-one",
        what="The sliding window of a layer is one key longer or shorter than the config says.",
        looks="Nothing until the input is longer than the window, then a small divergence between implementations, "
        "or against a reference that follows the config.",
        origin="`<` against `<=` in the distance; a cache that keeps `window` keys beside the new one; flash "
        "kernels, whose `window_size` counts the keys to the left of the query.",
        change="A window of W means the query itself and W - 1 keys before it, in prefill and in decode.",
    ),
    Entry(
        name="window-ignored",
        what="A layer that should look back over a window reads everything.",
        looks="Right up to the window, wrong after it; memory of the cache grows without bound.",
        origin="A 4D or default mask that replaces the sliding one; an implementation that takes no "
        "`sliding_window`; a flag such as `use_sliding_window` that is read in one place only.",
        change="Hand every layer the mask of its own type, and pass `sliding_window` to kernels that build their "
        "mask themselves.",
    ),
    Entry(
        name="window-layers-swapped",
        what="The layers with a window and the layers without are the other way round.",
        looks="Right up to the window; beyond it every layer differs from the config's `layer_types`.",
        origin="`layer_idx % 2` against `(layer_idx + 1) % 2`; layers counted from one; a pattern read from the wrong end.",
        change="Take the type of each layer from `config.layer_types[layer_idx]` and from nowhere else.",
    ),
    Entry(
        name="padding-visible",
        what="Real tokens read the keys of padding.",
        looks="A prompt answers differently in a padded batch than alone; the tokens under the padding move the logits.",
        origin="The 2D mask is dropped when a cache is present, when a chunk of a prefill is cut, in cross "
        "attention, or in a convolution beside attention.",
        change="Combine the 2D mask with the causal one in every call, cut to the keys that the call really sees.",
    ),
    Entry(
        name="document-leak",
        what="In a packed row a document reads the one before it.",
        looks="The logits of the second document move when the first one changes; fine-tuning with packing is worse"
        " than without.",
        origin="Position ids that restart do not reach the mask builder; recognition of packed rows that only works "
        "without a mask and without a cache; a collator that passes a 2D mask of ones.",
        change="Pass a block-diagonal 4D mask, or the sequence lengths that the kernel asks for, together with "
        "positions that restart; switch the cache off in training.",
    ),
    Entry(
        name="leak-outside-attention",
        what="Something other than attention carries information backwards in time: a normalisation over the time "
        "axis, a convolution without left padding, a router that chooses over the whole sequence.",
        looks="Later tokens move earlier logits although every attention mask is right; the location names a module"
        " that is not attention.",
        origin="Batch or sequence statistics in a norm; `padding='same'` in a convolution; expert-choice routing; a "
        "shift that went the wrong way.",
        change="Make the module that the location names causal: pad convolutions on the left only, normalise over "
        "the width only, route each token by itself.",
    ),
)
