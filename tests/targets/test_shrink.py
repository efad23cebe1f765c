"""Small configs: sizes by name, one layer of each kind, windows shorter than the inputs, promises
of a real config kept.
"""

import json
from pathlib import Path

import pytest
import transformers
from transformers import CONFIG_MAPPING

from attncheck.core.errors import TargetError
from attncheck.core.settings import Settings
from attncheck.model.forward_spec import ForwardSpec
from attncheck.targets import random_init
from attncheck.targets.checkpoints import cut_layers, cut_off
from attncheck.targets.load import load
from attncheck.targets.shrink import rules
from attncheck.targets.shrink.shrink import per_layer_fields, representatives, shrink, shrunk_rope

FIVE = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="types of transformers 5"
)


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("vocab_size", 32000, rules.VOCAB),
        ("hidden_size", 4096, rules.HIDDEN),
        ("intermediate_size", 11008, rules.INNER),
        ("num_attention_heads", 32, rules.HEADS),
        ("num_key_value_heads", 8, rules.KV_HEADS),
        ("num_key_value_heads", 1, 1),
        ("swa_num_key_value_heads", 8, rules.KV_HEADS),
        ("sliding_window", 4096, rules.WINDOW),
        ("sliding_window", 3, 3),
        ("attention_chunk_size", 8192, rules.WINDOW),
        ("max_position_embeddings", 131072, rules.CONTEXT),
        ("num_hidden_layers", 32, rules.LAYERS),
        ("num_experts", 64, rules.EXPERTS),
        ("chunk_size_feed_forward", 128, 128),
        ("attention_dropout", 0.1, 0.1),
        ("rms_norm_eps", 1e-6, 1e-6),
        ("q_lora_rank", None, None),
        ("moe_layer_end_index", -1, -1),
    ],
)
def test_size_by_name(field: str, old: float | None, new: float | None) -> None:
    assert rules.size_of(field)(old, rules.Wanted()) == new


def test_one_layer_of_each_kind_is_kept() -> None:
    config = transformers.Gemma2Config()
    kinds = ["sliding_attention"] * 20 + ["full_attention"] * 6
    config.layer_types, config.num_hidden_layers = kinds, 26
    assert per_layer_fields(config, ["layer_types"]) == ["layer_types"]
    assert representatives(config, ["layer_types"], 2) == [0, 20]
    assert representatives(config, ["layer_types"], 4) == [0, 1, 2, 20]


def test_special_ids_leave_the_ordinary_vocabulary() -> None:
    small = shrink(
        transformers.LlamaConfig(
            bos_token_id=128000, eos_token_id=[128001, 128009], pad_token_id=0
        ),
        rules.Wanted(),
    )
    special = [small.bos_token_id, *small.eos_token_id]
    assert all(100 < each < rules.VOCAB for each in special)
    assert len(set(special)) == 3
    assert small.pad_token_id == 0


def test_rotary_tables_follow_the_head_and_cross_their_switch() -> None:
    table = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 48,
        "long_factor": [2.0] * 48,
        "original_max_position_embeddings": 4096,
    }
    small = shrunk_rope(table, latent=False)
    assert len(small["short_factor"]) == len(small["long_factor"]) == rules.HEAD_DIM // 2
    assert small["original_max_position_embeddings"] == rules.SWITCH
    assert (
        sum(shrunk_rope({"mrope_section": [16, 24, 24]}, latent=False)["mrope_section"])
        == rules.HEAD_DIM // 2
    )


def test_a_real_config_keeps_its_promises(tmp_path: Path) -> None:
    real = transformers.LlamaConfig(
        hidden_size=576, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True
    )
    real.attention_bias, real.hidden_act = True, "gelu"
    real.save_pretrained(tmp_path)
    model = random_init.build(str(tmp_path / "config.json"), Settings())
    assert (
        model.config.attention_bias,
        model.config.hidden_act,
        model.config.tie_word_embeddings,
    ) == (True, "gelu", True)
    assert model.config.hidden_size == rules.HIDDEN
    assert model.config.num_hidden_layers == rules.LAYERS


def test_a_window_that_is_off_stays_off_in_a_real_config(tmp_path: Path) -> None:
    transformers.MistralConfig(sliding_window=None).save_pretrained(tmp_path)
    assert random_init.build(str(tmp_path), Settings()).config.sliding_window is None


def test_layers_are_obeyed() -> None:
    assert random_init.build("llama", Settings(layers=1)).config.num_hidden_layers == 1


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("lama", "unknown config type `lama`: did you mean `llama`?"),
        ("seq2sq/t5", "unknown kind of model `seq2sq`: did you mean `seq2seq`?"),
        ("masked/llama", "unknown config type of a masked model `llama`"),
        ("nowhere.json", "nowhere.json: cannot be read as a config.json"),
    ],
)
def test_mistakes_are_named(where: str, said: str) -> None:
    with pytest.raises(TargetError, match="^" + said.replace("?", r"\?").replace(".", r"\.")):
        random_init.build(where, Settings())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lama"}))
    with pytest.raises(TargetError, match="did you mean `llama`"):
        random_init.build(str(tmp_path / "config.json"), Settings())


@pytest.mark.parametrize(
    "name",
    ["gpt2", "mistral", "bloom", "mixtral", "mamba", "seq2seq/t5", "seq2seq/bart", "masked/bert"],
)
def test_a_type_runs_and_its_borders_are_reached(name: str) -> None:
    subject = load(f"config:{name}", Settings())
    logits_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    assert logits_BTV.shape == (1, subject.inputs.length, subject.facts.vocab)
    assert logits_BTV.isfinite().all()
    assert not subject.inputs.unreached
    assert subject.facts.parameters < 2e6


@FIVE
@pytest.mark.parametrize(
    "name",
    [
        "deepseek_v3",
        "gpt_oss",
        "llama4_text",
        "qwen3_next",
        "zamba2",
        "gemma4_text",
        "whisper",
        "musicgen",
    ],
)
def test_a_type_with_parts_of_its_own_runs(name: str) -> None:
    subject = load(f"config:{name}", Settings())
    assert subject.logits(ForwardSpec(subject.inputs.tokens)).isfinite().all()
    assert subject.dtype_name == "float64"


def test_windows_and_blocks_that_rows_are_filled_up_to_become_short() -> None:
    kinds = transformers.LEDConfig, transformers.PegasusXConfig
    led, pegasus = (shrink(kind(), rules.Wanted()) for kind in kinds)
    assert led.attention_window == 8
    assert pegasus.block_size == 16


@FIVE
def test_heads_are_not_shared_where_the_class_refuses_it() -> None:
    small = shrink(CONFIG_MAPPING["esmc"](), rules.Wanted())
    assert (small.num_attention_heads, small.num_key_value_heads) == (rules.HEADS, rules.HEADS)


@FIVE
def test_one_layer_of_each_kind_is_kept_where_the_kinds_alone_say_how_many() -> None:
    kinds = ["linear_attention", "moe", "full_attention", "mlp"]
    config = transformers.NemotronHConfig(layers_block_type=kinds * 5)
    small = shrink(config, rules.Wanted())
    assert sorted(small.layers_block_type) == sorted(kinds)


def test_windows_that_a_type_leaves_off_are_explored() -> None:
    subject = load("config:qwen2", Settings())
    assert subject.facts.window == rules.WINDOW


def test_globs_stand_for_the_types_of_this_release() -> None:
    assert "config:llama" in random_init.matching("config:ll*")
    assert random_init.matching("config:seq2seq/t5") == ["config:seq2seq/t5"]
    assert len(random_init.matching("config:*")) > 50
    with pytest.raises(TargetError, match="no config type of this release matches"):
        random_init.matching("config:nosuch*")


def test_first_layers_of_a_real_model(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    subject = load(str(tmp_path), Settings(layers=2, offline=True))
    assert subject.facts.layers == 2
    assert all(note.value == 0 for note in subject.loaded.load_notes)
    assert cut_off("model.layers.2.self_attn.q_proj.weight", 2)
    assert not cut_off("model.layers.1.self_attn.q_proj.weight", 2)
    with pytest.raises(TargetError, match="the model has 4 layers"):
        cut_layers(transformers.LlamaConfig(num_hidden_layers=4), 9)


@FIVE
def test_numbers_of_layers_stay_within_the_layers_that_are_left() -> None:
    config = shrink(transformers.Qwen3VLConfig(), rules.Wanted()).vision_config
    assert config.depth == 4
    assert config.deepstack_visual_indexes == [1, 3]
