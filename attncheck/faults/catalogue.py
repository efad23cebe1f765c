"""Every fault that can be planted, by the name that the contract gives it."""

from __future__ import annotations

from attncheck.faults import cache, cache_contents, generation, masks, padding, positions, rows, scores, training, windows
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
    Fault(name="padding-visible", plant=padding.padding_visible),
    Fault(name="position-ignores-padding", plant=padding.position_ignores_padding),
    Fault(name="nan-masked-row", plant=padding.nan_masked_row),
    Fault(name="rows-mixed", plant=rows.rows_mixed),
    Fault(name="cache-stale", plant=cache_contents.cache_stale, on_cache_only=True),
    Fault(name="cache-layer-mixup", plant=cache_contents.cache_layer_mixup, on_cache_only=True),
    Fault(name="cache-wrong-slot", plant=cache_contents.cache_wrong_slot, on_cache_only=True),
    Fault(name="cache-crop", plant=cache_contents.cache_crop, on_cache_only=True),
    Fault(name="cache-reorder", plant=cache_contents.cache_reorder, on_cache_only=True),
    Fault(name="cache-low-precision", plant=cache_contents.cache_low_precision, on_cache_only=True),
    Fault(name="key-rotated-twice", plant=cache_contents.key_rotated_twice, on_cache_only=True),
    Fault(name="window-off-by-one", plant=windows.window_off_by_one),
    Fault(name="window-ignored", plant=windows.window_ignored),
    Fault(name="window-layers-swapped", plant=windows.window_layers_swapped),
    Fault(name="softmax-scale", plant=scores.softmax_scale),
    Fault(name="softcap-missing", plant=scores.softcap_missing),
    Fault(name="sink-missing", plant=scores.sink_missing),
    Fault(name="kv-groups-tiled", plant=scores.kv_groups_tiled),
    Fault(name="dropout-active", plant=scores.dropout_active),
    Fault(name="label-shift", plant=training.label_shift),
    Fault(name="gradient-detached", plant=training.gradient_detached),
    Fault(name="generate-positions", plant=generation.generate_positions, on_cache_only=True),
    Fault(name="generate-repeats-token", plant=generation.generate_repeats_token, on_cache_only=True),
    Fault(name="logits-to-keep", plant=generation.logits_to_keep),
)
FAULTS = {fault.name: fault for fault in ALL}
