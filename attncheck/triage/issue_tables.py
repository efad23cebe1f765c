"""Names in the code of an issue and what they stand for. Standard library only."""

from __future__ import annotations

from typing import Any

DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "float64": "float64",
    "double": "float64",
}
CACHES = {
    "static": "static",
    "StaticCache": "static",
    "quantized": "quantised",
    "quantised": "quantised",
    "QuantizedCache": "quantised",
    "QuantoQuantizedCache": "quantised",
    "HQQQuantizedCache": "quantised",
    "dynamic": "dynamic",
    "DynamicCache": "dynamic",
    "offloaded": "offloaded",
    "OffloadedCache": "offloaded",
    "offloaded_static": "static offloaded",
}
QUANTIZED = {
    "load_in_4bit": "4-bit",
    "load_in_8bit": "8-bit",
    "GPTQConfig": "GPTQ",
    "AwqConfig": "AWQ",
    "HqqConfig": "HQQ",
    "TorchAoConfig": "torchao",
    "QuantoConfig": "quanto",
}
CHANGING: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "min_length": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "logits_processor": None,
}
"""Arguments of generate() after which its text is no longer the best tokens of the logits, and the
values that leave them alone.
"""
WARPING = ("temperature", "top_p", "top_k", "min_p", "typical_p")
"""Arguments of generate() that count only where it samples."""
TOKENIZING = ("encode", "encode_plus", "batch_encode_plus", "apply_chat_template", "processor")
"""Methods that make ids of a text."""
ASSISTED = ("prompt_lookup_num_tokens", "assistant_model")
