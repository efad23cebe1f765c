"""Faults of what is kept between calls, in words. Standard library only."""

from __future__ import annotations

from attncheck.faults.entry import Entry

ENTRIES = (
    Entry(
        name="cache-drops-token",
        what="The newest key and value of each call do not survive in the cache.",
        looks="The first call is right; each later one misses a token, first of all at the border of the chunks.",
        origin="Slices such as `[:-1]` left from teacher forcing; a window that cuts before it appends; a rollback "
        "by one too many.",
        change="Append all new keys before anything is cut, and check that the cache grows by T with every call.",
    ),
    Entry(
        name="cache-stale",
        what="Calls read keys and values from an earlier state of the cache.",
        looks="The second turn answers the first one; results depend on what ran before.",
        origin="A cache copied shallowly; an update that returns the old tensors; a static cache that was not reset.",
        change="Return the updated tensors from `update`, copy caches deeply, and reset static ones between conversations.",
    ),
    Entry(
        name="cache-layer-mixup",
        what="A layer reads the keys and values that another layer stored.",
        looks="The first call is right, everything after it is wrong from the layer concerned on.",
        origin="`layer_idx` missing or set twice when layers are built in a loop, shared between blocks, or re-"
        "numbered after a cut.",
        change="Give every attention module its own `layer_idx` that is counted over the layers which use the cache.",
    ),
    Entry(
        name="cache-wrong-slot",
        what="Keys are written to, or read from, slots of other tokens.",
        looks="Chunks on a cache differ although masks and positions are right; ring buffers show it only after they wrap round.",
        origin="Slot and position taken for one number; a ring buffer that is read without being turned; "
        "`cache_position` that restarts.",
        change="Write at the slot that the number of stored tokens gives, and turn ring buffers before the mask is applied.",
    ),
    Entry(
        name="cache-crop",
        what="Cropping the cache leaves too many or too few tokens.",
        looks="Assisted decoding and prefix reuse go wrong after the first rejected token; plain decoding is right.",
        origin="Negative and positive lengths mixed up; counters that are not cropped with the tensors; windows that"
        " cannot be cropped.",
        change="Crop keys, values, counters and recurrent states together, and refuse where one of them cannot be.",
    ),
    Entry(
        name="cache-reorder",
        what="Selecting or reordering rows of the cache moves the wrong ones.",
        looks="Beam search gives scores that a forward over the same tokens does not give; greedy decoding is right.",
        origin="`index_select` along the wrong axis or for the keys only; recurrent states left behind.",
        change="Reorder keys, values and states of every layer along the batch axis with one index.",
    ),
    Entry(
        name="cache-low-precision",
        what="The cache stores keys and values in a lower precision than the model computes in.",
        looks="A divergence between cached and uncached logits that does not shrink in a higher precision, of the "
        "size of the storage format's rounding.",
        origin="A cache allocated in a default dtype; a dtype cast after the cache was made; a quantised cache left on.",
        change="Allocate the cache in the dtype of the keys, or state the loss of precision as the intended trade.",
    ),
    Entry(
        name="state-dropped",
        what="A recurrent or convolution state starts from zero in a call that continues.",
        looks="State-space and hybrid models: one forward is right, a second chunk has forgotten the first. Single "
        "steps may be right, since they take another path.",
        origin="A scan over a chunk that takes no initial state; a branch `if seq_len == 1` that alone reads the cache.",
        change="Pass the stored state as the initial state of the scan, and the last inputs as the left context of "
        "the convolution.",
    ),
    Entry(
        name="kv-stored-repeated",
        what="The cache stores each key/value head once for every query head that shares it.",
        looks="The output is right; the cache is as many times larger as query heads share a key/value head.",
        origin="`repeat_kv` before `cache.update` instead of after it.",
        change="Store the key/value heads as projected and repeat (or expand) them when they are read.",
    ),
    Entry(
        name="kv-repeat-copied",
        what="Each decode step makes a physical copy of the whole cache for every query head.",
        looks="The output is right; a step allocates memory in proportion to the whole context and is slow.",
        origin="`repeat_interleave` or `expand(...).reshape(...)` in front of a kernel that takes grouped heads by itself.",
        change="Let the kernel group the heads (`enable_gqa=True`), or expand without reshaping.",
    ),
)
