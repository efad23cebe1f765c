"""Why a question is skipped: the kinds of reasons, each with patterns that its sentences match.

A kind's name is what `--fail-on skip=KIND,…` accepts and what a report counts. docs/skips.md holds
them all, with a script for each that confirms its reason.
"""

from __future__ import annotations

from attncheck.core.skip_kind import SkipKind

KINDS = (
    SkipKind("left-out", (r"^left out by ",), "`--quick` or `--budget` does not ask it."),
    SkipKind(
        "one-dtype",
        (r"model does not run in \w+:", r"weights cannot be cast to"),
        "Some modules keep a dtype of their own, so the model does not run in another one.",
    ),
    SkipKind(
        "reads-ahead",
        (
            r"both directions|not causal|hashing attention|used as an encoder",
            r"reads? both ways|goes both ways",
        ),
        (
            "The model reads later tokens by design, as its class or its config says, so nothing "
            "can be continued or generated from the left."
        ),
    ),
    SkipKind(
        "no-such-argument",
        (r"\.forward takes no ", r"takes no picture", r"takes no `num_items"),
        "The signature of `forward` has no argument of this meaning.",
    ),
    SkipKind(
        "no-generate",
        (r"has no generate\(\)",),
        "The class has no `generate()`, or says that it cannot generate.",
    ),
    SkipKind(
        "host-only",
        (r"offloading moves layers",),
        "Offloading moves tensors from an accelerator to the host, where the model runs here.",
    ),
    SkipKind(
        "implementation-refused",
        (
            r"^`\w+` attention: ",
            r"keeps `\w+` when asked for",
            r"cannot switch its attention",
            r"the same kernel runs when",
            r"only one implementation runs",
        ),
        "The class declares no support for this attention implementation, and keeps its own.",
    ),
    SkipKind(
        "flex-on-cpu",
        (r"with `flex_attention` attention", r"cannot be run on CPU with flex attention"),
        "On a CPU flex_attention runs without the compiler of the library, and raises.",
    ),
    SkipKind(
        "no-encoder",
        (r"no encoder that reads ids", r"model has no encoder$"),
        "No encoder reads token ids, so that nothing can be padded in front of a decoder.",
    ),
    SkipKind(
        "no-4d-mask",
        (r"with a 4D mask", r"4D `attention_mask` (is taken|raises)"),
        (
            "The model takes no 4D mask, or carries a state past every mask: its signature "
            "promises a 2D mask only."
        ),
    ),
    SkipKind(
        "float64-only",
        (r"concerns float64 only",),
        (
            "The case is about float64, and was asked in another precision: the model's own, or "
            "float32 where float64 breaks."
        ),
    ),
    SkipKind(
        "mask-dtype",
        (r"called with a 2D mask\b.*(bool|dtype)", r"bool tensor"),
        "The model takes a 2D mask of the tokenizer's dtype only.",
    ),
    SkipKind(
        "no-rotation",
        (r"no rotary embedding observed", r"no rotary"),
        "Queries and keys are not rotated: the model has other positions, or none.",
    ),
    SkipKind("no-padding-id", (r"names no padding id",), "The config names no padding id."),
    SkipKind(
        "other-states",
        (r"attends to something other", r"no attention layer over"),
        "The layer reads states that are no tokens: an encoder's, memories, compressed blocks.",
    ),
    SkipKind(
        "no-attention-to-watch",
        (
            r"out of reach of the attention interface",
            r"no attention that can be watched",
            r"written into a buffer",
        ),
        (
            "No attention passes the library's interface, and none is found in the model's own "
            "arithmetic."
        ),
    ),
    SkipKind(
        "not-traced",
        (
            r"not traced to a projection",
            r"laid out in a way",
            r"heads read different keys",
            r"no query, key or value projection",
            r"not part of standard attention",
            r"head counts differ",
            r"nothing states a (scale|soft-cap)",
        ),
        "The layer computes attention in another way than the reference can.",
    ),
    SkipKind(
        "positions-unread",
        (r"`position_ids` are accepted but change nothing",),
        (
            "`position_ids` change nothing: layers without positions, or states that count by "
            "themselves."
        ),
    ),
    SkipKind(
        "no-stated-span",
        (r"promises no reach", r"no module with a query projection", r"^its config has `"),
        "The config states no fixed span for this type of layer.",
    ),
    SkipKind(
        "short-context",
        (
            r"no more than the usual",
            r"leaves no room to move",
            r"context is too short for",
            r"no room for a hole",
        ),
        "No longer row fits below the context and the switches of the rotary scaling.",
    ),
    SkipKind(
        "asked-elsewhere",
        (r"ask the same$", r"no case in \w+, which decides"),
        "Another case answers this, or the precision that decides asks no such case.",
    ),
    SkipKind(
        "within-window",
        (r"is not longer than a window",),
        "What is read both ways fits into one window, so that none can cut it.",
    ),
    SkipKind(
        "states-only",
        (
            r"the config names no number of heads",
            r"holds no keys and values",
            r"holds no pairs",
            r"no two layers store",
        ),
        "The cache holds recurrent states, or a form of its own, and no keys and values.",
    ),
    SkipKind(
        "own-cache",
        (
            r"keeps a cache of its own kind",
            r"has no `(reorder_cache|batch_|crop)",
            r"does not use the cache that is passed",
            r"returns no cache that counts",
        ),
        "The model keeps a cache of its own class, without the operations of the library's.",
    ),
    SkipKind(
        "cache-kind-refused",
        (
            r"cannot be cropped",
            r"a (quantised|static|long static|dynamic) cache for",
            r"is not compatible with",
            r"cannot be copied",
            r"Cache' object",
            r"when called with (a cache|cache, use_cache$)",
            r"Cache\.\w+: ",
        ),
        (
            "The library refuses this kind of cache for layers of this type, or the class "
            "declares no static cache."
        ),
    ),
    SkipKind(
        "packing-unknown",
        (r"do not come from the library's builder",),
        ("The masks are not made by the library's builder, so restarted positions mean nothing."),
    ),
    SkipKind(
        "content-chosen",
        (r"chooses? (its )?keys by content",),
        "Layers choose keys by content; ties between scores depend on the length of the row.",
    ),
    SkipKind(
        "embeddings-refused",
        (
            r"embeddings passed to a model with an encoder",
            r"looks ids up in a second table",
            r"table of embeddings r(aises|eturns)",
            r"inputs_embeds",
        ),
        "Embeddings cannot stand for ids in this model.",
    ),
    SkipKind(
        "option-refused",
        (r"^generate\(\) (raises|makes)", r"beams"),
        "`generate()` refuses this strategy for the model, with the words that are shown.",
    ),
    SkipKind(
        "codes-beside",
        (r"the codes beside", r"it has codebooks"),
        "Codes of several codebooks stand beside each token.",
    ),
    SkipKind(
        "loss-of-its-own",
        (
            r"computes no loss",
            r"called with labels",
            r"fits no shift",
            r"labels. alone",
            r"loss behind a picture",
            r"no logits for every label",
            r"averages over the steps",
        ),
        (
            "The loss of this class is not a cross entropy of the returned logits, or needs more "
            "than labels."
        ),
    ),
    SkipKind(
        "rows-alike",
        (r"both rows generate the same tokens",),
        "Two prompts are answered alike, so that no row can end before the other.",
    ),
    SkipKind(
        "no-packing",
        (r"nothing in this model separates documents",),
        "The code of the model builds the same masks whether positions restart or not.",
    ),
    SkipKind(
        "no-smooth-step",
        (r"^a kink, or nothing to see",),
        "Differences of the logits do not settle as the step shrinks: a kink, or rounding inside.",
    ),
    SkipKind(
        "one-kv-head",
        (r"share one KV head",),
        "All query heads share one head of keys and values, so that none can be mixed up.",
    ),
    SkipKind(
        "no-checkpointing",
        (r"takes no gradient checkpointing",),
        "The class declares no gradient checkpointing.",
    ),
    SkipKind(
        "limit-in-words",
        (r"raises \w+: .*(support|compatib|implement|[Rr]equir|make sure|[Cc]annot)",),
        (
            "The model refuses the call in words: a check of its own raises, and says what it "
            "does not support."
        ),
    ),
    SkipKind(
        "no-item-passed",
        (r"no way to pass a",),
        "No drawn picture or sound of the usual shapes is accepted by the forward of this model.",
    ),
    SkipKind(
        "items-of-their-own",
        (r"that the model gives a row with", r"which only generate\(\) prepares"),
        "Positions, or the cache, of rows with pictures follow a rule of the model's own.",
    ),
    SkipKind(
        "positions-beyond",
        (r"positions from \d+ on raise",),
        "The model uses positions as indices, so that they cannot begin far from 0.",
    ),
    SkipKind(
        "no-exception",
        (r"does not leave the forward",),
        "The model catches exceptions inside its forward, so none can be thrown through it.",
    ),
    SkipKind(
        "random-training",
        (r"random(ness)? even", r"stays random", r"draws at random"),
        "Training mode draws at random whatever the dropout is.",
    ),
    SkipKind(
        "no-compiler", (r"compil",), "No compiler runs here, or the model cannot be compiled whole."
    ),
)
