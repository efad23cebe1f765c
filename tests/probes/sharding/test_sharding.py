"""sharding: two processes share a model; a fault in how its parts are made or added up is named."""

from __future__ import annotations

import json
from pathlib import Path

from probing import needs_gloo, torchrun

HERE = Path(__file__).parent
TYPES = ("llama", "qwen3", "gemma3_text", "gpt_oss")
pytestmark = needs_gloo

MORE_TYPES = ("mixtral", "qwen3_moe", "deepseek_v3")
SHARDED_CASES = ["weights", "one forward", "in chunks on a cache", "left-padded batch"]
NAMED = {
    "doubled": (
        "model.layers.1.self_attn.o_proj",
        "2 times what it should be: its parts are added up more than once",
    ),
    "missing": (
        "model.layers.0.mlp.down_proj",
        "each process has its own part: the parts are not added up",
    ),
    "biased": ("model.layers.1.self_attn.o_proj", "its bias is added in every process"),
    "swapped": (
        "model.layers.1.self_attn.q_proj",
        "these are not those of the whole model: model.layers.1.self_attn.q_proj.weight",
    ),
    "exchanged": (
        "model.layers.1.self_attn.v_proj",
        "rank 0 has the part of rank 1, rank 1 has the part of rank 0",
    ),
    "first_keys": ("model.layers.1.self_attn.k_proj", "rank 1 has the part of rank 0"),
}


def test_the_sharded_model_is_held_against_the_whole_and_the_fault_and_its_module_are_named() -> (
    None
):
    done = torchrun(str(HERE / "sharded_with_faults.py"), *TYPES, *MORE_TYPES, *NAMED)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for kind in (*TYPES, *MORE_TYPES):
        verdict, place, summary, noticed, cases = found[kind]
        assert (verdict, place, noticed) == ("pass", None, [True]), (kind, summary)
        assert cases == [[name, "pass"] for name in SHARDED_CASES], kind
    for fault, (module, words) in NAMED.items():
        verdict, place, note, noticed, cases = found[fault]
        assert (verdict, place, noticed) == ("fail", module, []), (fault, note)
        assert words in note, fault
