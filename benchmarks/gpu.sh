#!/usr/bin/env bash
# The default probes on SmolLM2 on a GPU in less than ten minutes: times and verdicts.
#
#     OUT=folder benchmarks/gpu.sh path/to/SmolLM2.gguf
set -euo pipefail
MODEL=${1:?a model: a .gguf file, a folder or a hub id}
OUT=${OUT:-gpu-results}
mkdir -p "$OUT"
attncheck doctor | tee "$OUT/doctor.txt"
for dtype in bfloat16 float32; do
    for attn in eager sdpa flex_attention flash_attention_2; do
        report="$OUT/$dtype-$attn.json"
        timeout 150 attncheck run "$MODEL" --device cuda --dtype "$dtype" --attn "$attn" --no-progress \
            --report "json=$report" > "$OUT/$dtype-$attn.txt" 2>&1 || true
        tail -n 1 "$OUT/$dtype-$attn.txt" | sed "s/^/$dtype $attn: /"
    done
done
PYTHONPATH="$(dirname "$0")/.." timeout 150 python -m benchmarks.overhead --model "$MODEL" --dtype float32 --json "$OUT/overhead.json" || true
