"""Every fault that can be planted, by the name that the contract gives it."""

from __future__ import annotations

from attncheck.faults import cache, masks, positions
from attncheck.faults.base import Fault

ALL = (
    Fault(name="causal-mask-missing", plant=masks.causal_mask_missing),
    Fault(name="mask-off-by-one", plant=masks.mask_off_by_one),
    Fault(name="mask-top-left", plant=masks.mask_top_left, on_cache_only=True),
    Fault(name="leak-outside-attention", plant=masks.leak_outside_attention),
    Fault(name="attention-mask-ignored", plant=masks.attention_mask_ignored),
    Fault(name="document-leak", plant=masks.document_leak),
    Fault(name="position-restart", plant=positions.position_restart, on_cache_only=True),
    Fault(name="position-offset", plant=positions.position_offset, on_cache_only=True),
    Fault(name="position-frozen", plant=positions.position_frozen, on_cache_only=True),
    Fault(name="position-ids-ignored", plant=positions.position_ids_ignored),
    Fault(name="cache-drops-token", plant=cache.cache_drops_token, on_cache_only=True),
    Fault(name="state-dropped", plant=cache.state_dropped, on_cache_only=True),
    Fault(name="kv-stored-repeated", plant=cache.kv_stored_repeated, on_cache_only=True),
    Fault(name="kv-repeat-copied", plant=cache.kv_repeat_copied),
)
FAULTS = {fault.name: fault for fault in ALL}
