"""The judge: each attention layer checked against what its config states.

How a layer is judged:

1. `layer_calls` runs a forward and passes every kernel call on, with what the layer's projections
   returned before it (`LayerCall`).
2. `projections` traces the kernel's queries and keys back to a projection (`ProjectionSource`), and
   `layer_inputs` forms the queries and keys that the layer should compare.
3. `config_spec` reads the span, scale, soft-cap and sinks that the config states, and `layer_spec`
   makes every set of parameters of them that the layer may have (`AttentionOption`).
4. `judge` computes attention with each set in float64 and compares it with the layer's output
   (`LayerResult`). Where none fits, it tries variants that faults produce.
5. `layer_results` does this for every layer of a forward, and of chunks on a cache, which it checks
   against what the forward showed (`PrefillState`).

Beside the outputs, `attention_span` observes which keys are read, `rotation` by what angle
positions rotate (read by `rotated_states`, fitted by `rotation_angles`), `heads` in which order
heads arrive and whose keys a layer reads, and `declared_scale` whether a scale that only the layer
declares makes sense.
"""
