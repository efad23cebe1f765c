"""Calls that the signature promises, and that raise or answer in the wrong shape.

BLT makes a cache from its outer config, which has no number of layers. Switch Transformers passes
`use_cache` on to its encoder, which refuses it. RWKV answers one token of three rows with (3, 3, V).
Falcon-H1 selects or repeats the rows of keys and values in a cache, not those of its recurrent states.
Whisper's mask counts a cache that its layers do not get where `use_cache=False`.
The number is 1 where the call raises or its reply has the wrong shape.
"""

from collections.abc import Callable

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BltConfig,
    BltForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

ROWS = torch.randint(5, 60, (3, 8), generator=torch.Generator().manual_seed(1))
SIZE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
T5_SIZE = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
HALVES = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
PART = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def broken(call: Callable[[], bool]) -> float:
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return float(not call())
    except Exception:
        return 1.0


def blt() -> bool:
    parts = {
        f"{name}_config": {**PART, "vocab_size": 260}
        for name in ("patcher", "encoder", "decoder", "global")
    }
    model = BltForCausalLM(BltConfig(vocab_size=260, **parts)).eval()
    assert model(ROWS[:1], use_cache=False).logits.shape[1] == 8
    return model(ROWS[:1], use_cache=True).logits.shape[1] == 8


def llama() -> bool:
    model = LlamaForCausalLM(LlamaConfig(**SIZE, **HEADS)).eval()
    return _selected(model)


def falcon_h1() -> bool:
    config = FalconH1Config(
        **SIZE, **HEADS, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
    )
    return _selected(FalconH1ForCausalLM(config).eval())


def _selected(model: torch.nn.Module) -> bool:
    cache = model(ROWS, use_cache=True).cache
    cache.batch_select_indices(torch.tensor([1]))
    return model(ROWS[:1, -1:], cache=cache, use_cache=True).logits.shape[:2] == (1, 1)


def rwkv() -> bool:
    model = RwkvForCausalLM(RwkvConfig(**SIZE, attention_hidden_size=32, context_length=64)).eval()
    state = model(ROWS, use_cache=True).state
    return model(ROWS[:, -1:], state=state, use_cache=True).logits.shape[:2] == (3, 1)


def switch() -> bool:
    model = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**T5_SIZE)).eval()
    return model(input_ids=ROWS, decoder_input_ids=ROWS, use_cache=True).logits.shape[1] == 8


def t5() -> bool:
    model = T5ForConditionalGeneration(T5Config(**T5_SIZE)).eval()
    return model(input_ids=ROWS, decoder_input_ids=ROWS, use_cache=True).logits.shape[1] == 8


def whisper() -> bool:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = WhisperConfig(**HALVES, **ids, num_mel_bins=16, max_source_positions=20)
    model = WhisperForConditionalGeneration(config).eval()
    return _read_only(model, {"encoder_outputs": (torch.randn(3, 20, 32),)})


def bart() -> bool:
    model = BartForConditionalGeneration(BartConfig(**HALVES)).eval()
    return _read_only(model, {"input_ids": ROWS})


def _read_only(model: torch.nn.Module, encoder: dict[str, object]) -> bool:
    cache = model(**encoder, decoder_input_ids=ROWS[:, :5], use_cache=True).cache
    reply = model(**encoder, decoder_input_ids=ROWS[:, 5:], cache=cache, use_cache=False)
    return reply.logits.shape[:2] == (3, 3)


def main() -> dict[str, float]:
    calls = (blt, switch, rwkv, falcon_h1, whisper, llama, t5, bart)
    return {call.__name__: broken(call) for call in calls}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
