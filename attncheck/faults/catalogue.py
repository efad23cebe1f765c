"""Every fault that can be planted, by the name that the contract gives it."""

from __future__ import annotations

from attncheck.faults import (
    alibi,
    cache,
    cache_contents,
    generation,
    history,
    masks,
    padding,
    positions,
    rows,
    scores,
    training,
    windows,
)
from attncheck.faults.engine.fault import Fault

ALL = (
    Fault(name="causal-mask-missing", inject=masks.causal_mask_missing),
    Fault(name="mask-off-by-one", inject=masks.mask_off_by_one),
    Fault(name="mask-top-left", inject=masks.mask_top_left, on_cache_only=True),
    Fault(name="leak-outside-attention", inject=masks.leak_outside_attention),
    Fault(name="attention-mask-ignored", inject=masks.attention_mask_ignored),
    Fault(name="document-leak", inject=masks.document_leak),
    Fault(name="position-restart", inject=positions.position_restart, on_cache_only=True),
    Fault(name="position-offset", inject=positions.position_offset, on_cache_only=True),
    Fault(name="position-frozen", inject=positions.position_frozen, on_cache_only=True),
    Fault(name="position-ids-ignored", inject=positions.position_ids_ignored),
    Fault(name="cache-drops-token", inject=cache.cache_drops_token, on_cache_only=True),
    Fault(name="state-dropped", inject=cache.state_dropped, on_cache_only=True),
    Fault(name="kv-stored-repeated", inject=cache.kv_stored_repeated, on_cache_only=True),
    Fault(name="kv-repeat-copied", inject=cache.kv_repeat_copied),
    Fault(name="padding-visible", inject=padding.padding_visible),
    Fault(name="position-ignores-padding", inject=padding.position_ignores_padding),
    Fault(name="nan-masked-row", inject=padding.nan_masked_row),
    Fault(name="rows-mixed", inject=rows.rows_mixed),
    Fault(name="cache-stale", inject=cache_contents.cache_stale, on_cache_only=True),
    Fault(name="cache-layer-mixup", inject=cache_contents.cache_layer_mixup, on_cache_only=True),
    Fault(name="cache-wrong-slot", inject=cache_contents.cache_wrong_slot, on_cache_only=True),
    Fault(name="cache-crop", inject=cache_contents.cache_crop, on_cache_only=True),
    Fault(name="cache-reorder", inject=cache_contents.cache_reorder, on_cache_only=True),
    Fault(
        name="cache-low-precision", inject=cache_contents.cache_low_precision, on_cache_only=True
    ),
    Fault(name="key-rotated-twice", inject=cache_contents.key_rotated_twice, on_cache_only=True),
    Fault(name="alibi-local", inject=alibi.alibi_local, on_cache_only=True),
    Fault(name="window-off-by-one", inject=windows.window_off_by_one),
    Fault(name="window-ignored", inject=windows.window_ignored),
    Fault(name="window-layers-swapped", inject=windows.window_layers_swapped),
    Fault(name="softmax-scale", inject=scores.softmax_scale),
    Fault(name="softcap-missing", inject=scores.softcap_missing),
    Fault(name="sink-missing", inject=scores.sink_missing),
    Fault(name="kv-groups-tiled", inject=scores.kv_groups_tiled),
    Fault(name="rope-scale-switch", inject=history.rope_scale_switch),
    Fault(name="dropout-active", inject=scores.dropout_active),
    Fault(name="label-shift", inject=training.label_shift),
    Fault(name="loss-weights", inject=training.loss_weights),
    Fault(name="gradient-detached", inject=training.gradient_detached),
    Fault(name="generate-positions", inject=generation.generate_positions, on_cache_only=True),
    Fault(
        name="generate-repeats-token", inject=generation.generate_repeats_token, on_cache_only=True
    ),
    Fault(name="logits-to-keep", inject=generation.logits_to_keep),
)
FAULTS = {fault.name: fault for fault in ALL}
