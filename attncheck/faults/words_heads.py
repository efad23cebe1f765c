"""Faults of heads, scores, training and generation, in words. Standard library only."""

from __future__ import annotations

from attncheck.faults.entry import Entry

ENTRIES = (
    Entry(
        name="kv-groups-tiled",
        what="Query heads are dealt out to key/value heads in turn (0, 1, 0, 1) instead of in blocks (0, 0, 1, 1).",
        looks="Every shape is right, every logit is wrong; a converted checkpoint speaks nonsense.",
        origin="`repeat` instead of `repeat_interleave`; a reshape to (groups, kv_heads) instead of (kv_heads, "
        "groups); a conversion that permutes the projections with the wrong number of heads.",
        change="Query head h reads key/value head h // (heads / kv_heads).",
    ),
    Entry(
        name="softmax-scale",
        what="Scores are multiplied by another scale than the config promises: twice, not at all, or by the wrong width.",
        looks="All implementations may agree; the model is much worse than it was, or one implementation differs "
        "from the others.",
        origin="The query scaled in the module and again in the kernel; a scale flag that one implementation "
        "ignores; the square root of the hidden size instead of the head's.",
        change="Apply the scale once, 1/sqrt(head_dim) or what the config says, and pass it to the kernel explicitly.",
    ),
    Entry(
        name="softcap-missing",
        what="The soft-cap of the attention scores in the config is not applied.",
        looks="One implementation differs, most of all with large scores; long or padded inputs break first.",
        origin="A fused kernel without soft-cap support that is chosen by default.",
        change="Choose an implementation that applies it (eager, flex_attention), or refuse the fused kernel.",
    ),
    Entry(
        name="sink-missing",
        what="Learned attention sinks of the layer do not take part in the softmax.",
        looks="Attention weights sum to one where they should sum to less; one implementation differs from the others.",
        origin="A kernel that ignores the `s_aux` argument; sinks that were newly initialised because the "
        "checkpoint's name differs.",
        change="Pass the sinks to the kernel, or choose one that supports them.",
    ),
    Entry(
        name="dropout-active",
        what="Dropout is applied in evaluation mode.",
        looks="The same call twice gives different logits.",
        origin="The dropout probability passed to the kernel without asking `self.training`; a module that is never "
        "put in eval mode.",
        change="Pass `dropout_p=0.0` unless the module is training.",
    ),
    Entry(
        name="rows-mixed",
        what="Rows of a batch read each other.",
        looks="A prompt answers differently depending on its neighbours in the batch, far beyond rounding.",
        origin="A reshape that merges batch and heads in one order and splits them in another; a norm or router over the batch.",
        change="Keep the batch axis apart; the location names the module.",
    ),
    Entry(
        name="label-shift",
        what="Labels are shifted twice, or not at all, before the loss.",
        looks="The loss is that of predicting the token after the next one (high for ever), or that of copying the "
        "input (near zero).",
        origin="Shifted in the collator and again in the model; a loss function that shifts inside, after a forward that did.",
        change="Shift once: logits at t against the token at t + 1, and say who does it.",
    ),
    Entry(
        name="loss-weights",
        what="Labels are shifted as they should be, and weigh too much, too little or nothing in the loss.",
        looks="The loss depends on padding, on the length of rows or on how a batch is cut into steps; some tokens are never "
        "trained, or tokens that should not be are.",
        origin="A sum divided by positions instead of labels, a mean of means over rows, a slice too short by one, -100 replaced "
        "before the loss, label smoothing that nobody asked for.",
        change="Sum the cross entropy of the labels that are not -100, and divide by their number or by `num_items_in_batch`.",
    ),
    Entry(
        name="logits-to-keep",
        what="With `logits_to_keep` the wrong positions are returned.",
        looks="generate() is wrong while a full forward is right; scores belong to another token.",
        origin="Slices from the wrong end, an index tensor taken for a number, 0 that should mean all.",
        change="Keep the last n positions: `slice(-n, None)`, everything for 0, the given indices for a tensor.",
    ),
    Entry(
        name="gradient-detached",
        what="Part of the graph is cut: a projection gets no gradient, or too small a one.",
        looks="The forward is right; a weight never moves in training, and a finite difference disagrees with its gradient.",
        origin="`.detach()`, `.data` or `torch.no_grad()` around keys or values; a checkpointed block whose input "
        "needs no gradient; a cache that stores detached keys in training.",
        change="Take the detach out of the training path; keep it in the one that only generates.",
    ),
    Entry(
        name="generate-positions",
        what="generate() hands the model other positions than the model's own rule gives.",
        looks="forward is right, generate() is wrong from the first token or after the prompt.",
        origin="A shared helper that counts from 0 where the model counts from pad + 1; positions that go on from "
        "the padded length.",
        change="Let the model compute its positions, or override `prepare_inputs_for_generation` with the model's own rule.",
    ),
    Entry(
        name="generate-repeats-token",
        what="generate() feeds the last prompt token again on top of a cache that already holds it.",
        looks="The first generated token has scores that a forward does not give; continued conversations stutter.",
        origin="Input ids cut by the wrong length when a filled cache is passed in.",
        change="Feed only the tokens that the cache does not hold: `input_ids[:, cache_length:]`.",
    ),
    Entry(
        name="nan-masked-row",
        what="A query that may read nothing becomes NaN.",
        looks="NaN in the rows of padding, which then spreads through the layers that follow or through the loss.",
        origin="A softmax over a row of minus infinity; the smallest number of one dtype cast to another.",
        change="Let fully masked rows read something harmless (themselves), or fill their output with zero.",
    ),
)
