"""Models with quantised weights, and with quantised activations."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from healthy.kinds import kind, tiny_llama

WIDE = {"hidden_size": 64, "intermediate_size": 128}


def read_as(config: Any, dtype: torch.dtype) -> Any:
    """A saved model that the library quantises while it reads it."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama(**WIDE).save_pretrained(folder)
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=config, dtype=dtype, device_map="cpu"
        )


def torchao(name: str, **options: Any) -> Any:
    import torchao.quantization

    return transformers.TorchAoConfig(getattr(torchao.quantization, name)(**options))


@kind("auto")
def torch_dynamic_int8() -> Any:
    return torch.ao.quantization.quantize_dynamic(tiny_llama(), {nn.Linear}, dtype=torch.qint8)


@kind("auto", needs=("bitsandbytes",))
def bitsandbytes_int8() -> Any:
    return read_as(transformers.BitsAndBytesConfig(load_in_8bit=True), torch.float16)


@kind("auto", needs=("bitsandbytes",))
def bitsandbytes_int8_bfloat16() -> Any:
    return read_as(transformers.BitsAndBytesConfig(load_in_8bit=True), torch.bfloat16)


def four_bits(**options: Any) -> Any:
    return transformers.BitsAndBytesConfig(load_in_4bit=True, **options)


@kind("auto", needs=("bitsandbytes",))
def bitsandbytes_nf4() -> Any:
    config = four_bits(bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    return read_as(config, torch.bfloat16)


@kind("auto", needs=("bitsandbytes",))
def bitsandbytes_fp4_doubly() -> Any:
    return read_as(
        four_bits(bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True), torch.float32
    )


@kind("auto", needs=("torchao",))
def torchao_int8() -> Any:
    return read_as(torchao("Int8WeightOnlyConfig"), torch.bfloat16)


@kind("auto", needs=("torchao",))
def torchao_int8_dynamic() -> Any:
    return read_as(torchao("Int8DynamicActivationInt8WeightConfig"), torch.bfloat16)


@kind("auto", needs=("torchao",))
def torchao_int8_dynamic_float32() -> Any:
    return read_as(torchao("Int8DynamicActivationInt8WeightConfig"), torch.float32)


@kind("auto", needs=("torchao",))
def torchao_fp8() -> Any:
    return read_as(torchao("Float8WeightOnlyConfig"), torch.bfloat16)


@kind("auto", needs=("torchao",))
def torchao_int4() -> Any:
    return read_as(torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4), torch.bfloat16)


def quanto(dtype: torch.dtype, weights: str, activations: str | None = None) -> Any:
    from optimum import quanto

    model = tiny_llama().to(dtype)
    kinds = {"weights": getattr(quanto, weights)}
    if activations:
        kinds["activations"] = getattr(quanto, activations)
    quanto.quantize(model, exclude="lm_head", **kinds)
    if activations:
        with quanto.Calibration(), torch.no_grad():
            for seed in range(4):
                torch.manual_seed(seed)
                model(input_ids=torch.randint(3, 64, (2, 24)), use_cache=False)
    quanto.freeze(model)
    return model


@kind("auto", needs=("optimum",))
def quanto_int8() -> Any:
    return quanto(torch.float32, "qint8")


@kind("auto", needs=("optimum",))
def quanto_int8_activations() -> Any:
    return quanto(torch.float32, "qint8", "qint8")


@kind("auto", needs=("optimum",), known=("reference",))
def quanto_float8() -> Any:
    """A cast to bfloat16 rounds the rotary frequencies as well, which is found."""
    return quanto(torch.bfloat16, "qfloat8")


class RowScaled(nn.Module):
    """A layer that rounds its input to bytes, with one scale for the whole batch."""

    def __init__(self, weight_ON: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_ON.shape
        self.register_buffer("scale_O", weight_ON.abs().amax(1) / 127)
        codes_ON = (weight_ON / self.get_buffer("scale_O")[:, None]).round()
        self.register_buffer("codes_ON", codes_ON.to(torch.int8))

    def forward(self, given: Tensor) -> Tensor:
        scale = (given.abs().max() / 127).clamp_min(1e-30)
        codes = (given / scale).round()
        rows = codes @ self.get_buffer("codes_ON").to(given.dtype).T
        return rows * scale * self.get_buffer("scale_O").to(given.dtype)


@kind("auto")
def one_scale_for_the_batch() -> Any:
    """As static kernels of inference engines do: what else is in the batch changes the rounding."""
    model = tiny_llama()
    for layer in model.model.layers:
        for place, name in ((layer.mlp, "down_proj"), (layer.self_attn, "v_proj")):
            setattr(place, name, RowScaled(getattr(place, name).weight.detach()))
    return model
