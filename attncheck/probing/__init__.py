"""All that the author of a probe imports: our own probes import nothing else of attncheck.

A probe measures a model and judges what it measured, in two steps that never mix: `measure` touches
the model and decides nothing; `judge` is pure, so that a saved report can be judged again.

- The probe, `Probe`, `attempt` (or `chosen`, where one computation gives several cases), and its
  cases, each a `Measurement`: a `Comparison` of two tensors (from `subject.compare`), a number
  `AtMost` a limit, a `Figure` only shown, or `skipped`; with `Divergence`, `Cause`, `Rerun`,
  `merged`, `verdict_of`, `Evidence`, `Ruling`, `Verdict`.
- The model: `Subject` (`subject.logits`, `subject.compare`, `subject.inputs`, `subject.can`), with
  `Capability`, `Unsupported` and `REFUSALS`, the exceptions that a model may answer a call with.
- A forward: `ForwardSpec`; batches: `Padded`, `pad_rows`; `decode_chunks`, `reference_forward`.
- Rounding: `Budget`, `measure_budget`, `own_budget`, `max_abs_diff`, `beyond`, `finitely_beyond`;
  attention: `AttentionCall`, with `capture` and `subject.record_calls`.
- Whole modules that few probes need: `cache_kinds`, `generation`, …; lost numbers: `finite`.
"""

from __future__ import annotations

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import key_value_projections
from attncheck.attention.recorder import capture
from attncheck.attention.rotary_tables import stored_tables
from attncheck.core.capability import Capability
from attncheck.core.choice import chosen
from attncheck.core.divergence import Divergence
from attncheck.core.errors import CallFailed, Unsupported, first_line
from attncheck.core.finding import Control, Evidence, Ruling
from attncheck.core.measurement import (
    AtMost,
    Cause,
    Comparison,
    Figure,
    Measurement,
    Rerun,
    following,
    not_measured,
    skipped,
    verdict_of,
)
from attncheck.core.merging import merged
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict, worst
from attncheck.distributed import parts, ranks
from attncheck.judge import attention_span, layer_results
from attncheck.judge.attention_span import ObservedKeys, wrong_pairs
from attncheck.judge.config_spec import FULL, AttentionSpan, SpanSpec, span_spec
from attncheck.judge.declared_scale import scale_cases
from attncheck.judge.far_keys import FAR, far_keys_case
from attncheck.judge.heads import projection_cases
from attncheck.judge.judge import LayerResult
from attncheck.media import answers as media_answers
from attncheck.media import batches as media_batches
from attncheck.media import cases as media_cases
from attncheck.model import cache_kinds, encoder_padding, finite, generation, reach, token_sweep
from attncheck.model.attempts import asked, attempt, unnamed
from attncheck.model.caches import CachedTensor, key_values, repeated_heads
from attncheck.model.compat import cache_of, cached_length, config_fields, text_config
from attncheck.model.compiling import compiled, why_not_compiled
from attncheck.model.cut_gradient import cut_gradient
from attncheck.model.decoding import decode_chunks, reference_forward, rollback_cache
from attncheck.model.directional_derivatives import (
    directional_derivative,
    projections,
    why_no_derivative,
)
from attncheck.model.embeddings import token_table
from attncheck.model.forward_spec import (
    ForwardSpec,
    Mask2D,
    Mask4D,
    Positions,
    all_ones,
    blocks,
    counting,
)
from attncheck.model.generation import greedy
from attncheck.model.gradients import (
    compare_gradients,
    input_gradient,
    later_budget,
    loop_gradient,
    switched_gradient,
    training_step,
)
from attncheck.model.inputs import Inputs, Row, Tokens, for_rows
from attncheck.model.long_inputs import decoded, ends_compared, prefixes_compared
from attncheck.model.loss import (
    ITEMS,
    STEPS,
    LossCall,
    caller_shifts,
    home_of_loss,
    logits_and_loss,
    loss_gradient,
    own_shift,
    require_one_code,
    takes_items,
)
from attncheck.model.noise_floor import own_budget
from attncheck.model.padding import (
    Padded,
    Side,
    compare_rows,
    left_padded,
    own_pad_id,
    pad_rows,
    padded_ids,
    without_padding,
)
from attncheck.model.provenance import AFTER, PIECES, Provenance, with_batch, with_greedy, with_kept
from attncheck.model.refusal import REFUSALS, classified
from attncheck.model.signature import takes_argument
from attncheck.model.subject import Subject
from attncheck.model.switching import FLEX, not_switched, uncompiled
from attncheck.model.training import training, without_randomness
from attncheck.model.weights import (
    as_numbers,
    buffers_of,
    changed,
    digests,
    is_sharded,
    same_digest,
    weights_in_memory,
)
from attncheck.numerics import label_weighting
from attncheck.numerics.budget import HEADROOM, Budget, measure_budget
from attncheck.numerics.constants import without_constants
from attncheck.numerics.divergence import (
    beyond,
    beyond_at,
    finitely_beyond,
    holes,
    max_abs,
    max_abs_diff,
)
from attncheck.numerics.hooks import hooked
from attncheck.numerics.label_weighting import Weighting
from attncheck.numerics.losses import IGNORED, Loss, cross_entropy
from attncheck.numerics.module_outputs import Event, ModuleOutputs
from attncheck.probing.probe import Probe
from attncheck.targets import sharded
from attncheck.targets.adapters import adapted_layers

__all__ = [
    "AFTER",
    "FAR",
    "FLEX",
    "FULL",
    "HEADROOM",
    "IGNORED",
    "ITEMS",
    "PIECES",
    "REFUSALS",
    "STEPS",
    "AtMost",
    "AttentionCall",
    "AttentionSpan",
    "Budget",
    "CachedTensor",
    "CallFailed",
    "Capability",
    "Cause",
    "Comparison",
    "Control",
    "Divergence",
    "Event",
    "Evidence",
    "Figure",
    "ForwardSpec",
    "Inputs",
    "LayerResult",
    "Loss",
    "LossCall",
    "Mask2D",
    "Mask4D",
    "Measurement",
    "ModuleOutputs",
    "ObservedKeys",
    "Padded",
    "Positions",
    "Probe",
    "Provenance",
    "Rerun",
    "Row",
    "Ruling",
    "Side",
    "SpanSpec",
    "Subject",
    "Tokens",
    "Unsupported",
    "Verdict",
    "Weighting",
    "adapted_layers",
    "all_ones",
    "as_numbers",
    "asked",
    "attempt",
    "attention_span",
    "beyond",
    "beyond_at",
    "blocks",
    "buffers_of",
    "cache_kinds",
    "cache_of",
    "cached_length",
    "caller_shifts",
    "capture",
    "changed",
    "chosen",
    "classified",
    "compare_gradients",
    "compare_rows",
    "compiled",
    "config_fields",
    "counting",
    "cross_entropy",
    "cut_gradient",
    "decode_chunks",
    "decoded",
    "describe",
    "digests",
    "directional_derivative",
    "encoder_padding",
    "ends_compared",
    "far_keys_case",
    "finite",
    "finitely_beyond",
    "first_line",
    "following",
    "for_rows",
    "generation",
    "greedy",
    "holes",
    "home_of_loss",
    "hooked",
    "input_gradient",
    "is_sharded",
    "key_value_projections",
    "key_values",
    "label_weighting",
    "later_budget",
    "layer_results",
    "left_padded",
    "logits_and_loss",
    "loop_gradient",
    "loss_gradient",
    "max_abs",
    "max_abs_diff",
    "measure_budget",
    "media_answers",
    "media_batches",
    "media_cases",
    "merged",
    "not_measured",
    "not_switched",
    "own_budget",
    "own_pad_id",
    "own_shift",
    "pad_rows",
    "padded_ids",
    "parts",
    "prefixes_compared",
    "projection_cases",
    "projections",
    "ranks",
    "reach",
    "reference_forward",
    "repeated_heads",
    "require_one_code",
    "rollback_cache",
    "same_digest",
    "scale_cases",
    "sharded",
    "skipped",
    "span_spec",
    "stored_tables",
    "switched_gradient",
    "takes_argument",
    "takes_items",
    "text_config",
    "token_sweep",
    "token_table",
    "training",
    "training_step",
    "uncompiled",
    "unnamed",
    "verdict_of",
    "weights_in_memory",
    "why_no_derivative",
    "why_not_compiled",
    "with_batch",
    "with_greedy",
    "with_kept",
    "without_constants",
    "without_padding",
    "without_randomness",
    "worst",
    "wrong_pairs",
]
