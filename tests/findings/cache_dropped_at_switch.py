"""Phi-4 multimodal drops the cache in generate() when the original length is passed, and goes on
with the newest token alone.

`prepare_inputs_for_generation` sets the cache to None so that everything is computed anew, but the
ids that follow are already cut to the newest token. The number is the largest difference between
the logits behind a generated token and one forward over the same tokens; rotary scaling is off, so
nothing has to be computed anew. Controls: Phi-3, and both within the original length.
"""

import torch
from transformers import (
    GenerationConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Phi4MultimodalConfig,
    Phi4MultimodalForCausalLM,
)

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SIZE |= {
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
SIZE |= {"original_max_position_embeddings": 16}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
}
VISION |= {"patch_size": 14, "crop_size": 28, "image_token_id": 60}
AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_blocks": 2,
    "num_attention_heads": 4,
    "ext_pw_out_channel": 32,
}
AUDIO |= {"depthwise_separable_out_channel": 32, "nemo_conv_channels": 32, "audio_token_id": 61}
NEW = 6


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return model.eval()


def apart(model: torch.nn.Module, length: int) -> float:
    prompt = torch.randint(5, 58, (1, length), generator=torch.Generator().manual_seed(1))
    settings = GenerationConfig(
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with torch.no_grad():
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=settings
        )
        whole = model(made.sequences, use_cache=False).logits[:, length - 1 : -1]
    return (torch.stack(made.logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    multimodal = Phi4MultimodalConfig(**SIZE, vision_config=VISION, audio_config=AUDIO)
    models = {
        "phi4_multimodal": Phi4MultimodalForCausalLM(multimodal),
        "phi3": Phi3ForCausalLM(Phi3Config(**SIZE)),
    }
    numbers = {name: apart(drawn(model), 14) for name, model in models.items()}
    return numbers | {
        f"{name} within the length": apart(model, 8) for name, model in models.items()
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:36s} {number:.2g}")
