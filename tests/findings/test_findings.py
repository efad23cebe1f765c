"""Every confirmed finding still shows its number, by a script that uses none of the code under
test.

The scripts are bound to the release that the findings were made in: a later one may have mended
them.
"""

import importlib.util
from pathlib import Path

import pytest
import transformers

RELEASE = "5.24.0"
HERE = Path(__file__).parent
HEALTHY = 1e-4
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
CONTROLS = {
    "accepted_calls_that_raise": {"llama", "t5", "bart"},
    "fsmt_reads_ahead": {
        "fsmt without a cache",
        "bart",
        "bart, encoder_outputs without a cache",
    },
    "funnel_pools_the_padding": {"bert", "bert, two tokens"},
    "m2m_steps_count_the_padding": {"m2m_100 without padding", "nllb-moe without padding"},
    "masks_that_change_nothing": {"bert"},
    "nllb_moe_static_cache": {"dynamic cache", "static cache without experts"},
    "padding_in_convolutions": {"bert"},
    "t5gemma2_masks_joined": {"sdpa, no mask", "eager, 4D mask"},
    "t5gemma_packed_rows": {"llama"},
    "window_of_one": {"window 2", "kept beyond the window of 2"},
    "blt_padding_in_patches": {"no padding"},
    "boolean_mask_under_eager": {"sdpa"},
    "cached_step_without_mask": {
        "bart",
        *(f"{kind} in one forward" for kind in ("prophetnet", "led", "fsmt", "bart")),
    },
    "cache_dropped_at_switch": {
        "phi3",
        "phi3 within the length",
        "phi4_multimodal within the length",
    },
    "doge_flex_reads_ahead": {"sdpa"},
    "dynamic_ntk_remembers": {"12 tokens"},
    "gpt_neo_static_cache": {"dynamic cache"},
    "sliding_cache_keeps_the_prompt": {"full_attention"},
    "bamba_positions_restart": {"bamba with explicit positions", "falcon_h1"},
    "falcon_alibi_twice": {"eager"},
    "falcon_weights_asked_for": {"one token"},
    "inkling_static_cache": {"dynamic cache"},
    "minimax_beams_keep_their_state": {"attention alone", "attention alone, reset"},
    "left_padding_counts": {"llama4_text without the scaling", "llama"},
    "mamba_step_with_full_mask": set(),
    "moshi_window_only_in_cache": {"window 64"},
    "packed_rows_cache_or_mask": {"no mask, cache off"},
    "packed_rows_leak": {"llama"},
    "picture_causal_under_sdpa": {"not causal"},
    "picture_positions_stay": {
        f"{kind} one forward over text" for kind in ("qwen2_vl", "qwen2_5_vl")
    },
    "picture_read_in_front_of_it": {
        "in front of the picture, switched off",
        "a row of text beside, switched off",
    },
    "picture_steps_count_it": {"explicit positions"},
    "prefix_without_token_types": {"token types of text"},
    "second_picture_on_a_cache": {"llava"},
    "prophetnet_reads_ahead": {"bart"},
    "recomputed_on_the_cache": {"llama"},
    "recurrent_gemma_remembers": {"two tokens"},
    "roberta_generate_positions": {"bert"},
    "rotary_scaling_across_a_cache": {
        "llama within the trained length",
        "phi3 within the trained length",
    },
    "sharded_by_the_librarys_plan": {"gemma3n without sparse gates", "inkling2", "llama"},
    "state_lost_in_second_chunk": {"mamba2"},
    "time_step_limit_in_steps": {"nemotron_h without the limit", "zamba2 without the limit"},
    "xlstm_inference_chunks": {"8 tokens"},
}


def numbers_of(name: str) -> dict[str, float]:
    spec = importlib.util.spec_from_file_location(f"finding_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


def test_every_script_is_listed() -> None:
    assert set(SCRIPTS) == set(CONTROLS)


@pytest.mark.skipif(
    transformers.__version__ != RELEASE, reason=f"the findings are about transformers {RELEASE}"
)
@pytest.mark.parametrize("name", SCRIPTS)
def test_finding_is_confirmed(name: str) -> None:
    numbers = numbers_of(name)
    assert CONTROLS[name] < set(numbers)
    for kind, number in numbers.items():
        if kind in CONTROLS[name]:
            assert number < HEALTHY, f"the control {kind} moves by {number}"
        else:
            assert number > 10 * HEALTHY, f"{kind} moves by no more than {number}"


def test_scripts_use_none_of_the_code_under_test() -> None:
    for name in SCRIPTS:
        assert "attncheck" not in (HERE / f"{name}.py").read_text(encoding="utf-8")
