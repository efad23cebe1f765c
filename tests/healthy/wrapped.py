"""Models in wrappers, with hooks, adapters or parts in other precisions."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from healthy.kinds import kind, tiny_llama


@kind(fast=True)
def compiled_model() -> Any:
    return torch.compile(tiny_llama(), backend="eager")


@kind()
def compiled_with_inductor() -> Any:
    return torch.compile(tiny_llama(num_hidden_layers=1))


@kind()
def compiled_in_place() -> Any:
    model = tiny_llama()
    model.compile(backend="eager")
    return model


@kind()
def compiled_forward() -> Any:
    model = tiny_llama()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@kind("bfloat16")
def compiled_layers() -> Any:
    model = tiny_llama()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return model


@kind()
def hooks_that_record() -> Any:
    model, seen = tiny_llama(), []
    for module in model.modules():
        module.register_forward_hook(lambda module, given, out: seen.append(type(out)))
    model.model.layers[0].register_forward_pre_hook(
        lambda module, args, named: (args, named), with_kwargs=True
    )
    return model


@kind("bfloat16", fast=True)
def hooks_that_steer() -> Any:
    model = tiny_llama()
    torch.manual_seed(5)
    along_W = torch.randn(model.config.hidden_size)

    def steer(module: Any, given: Any, out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        moved = first + along_W.to(first.dtype)
        return (moved, *out[1:]) if isinstance(out, tuple) else moved

    model.model.layers[0].register_forward_hook(steer)
    return model


@kind(fast=True)
def inference_mode_parameters() -> Any:
    with torch.inference_mode():
        return tiny_llama()


@kind()
def frozen_parameters() -> Any:
    return tiny_llama().requires_grad_(False)


class InFloat64(nn.Module):
    """A head that computes in float64 whatever it is given."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.double()
        self.weight = self.inner.weight

    def forward(self, given: Tensor) -> Tensor:
        return self.inner(given.double()).to(given.dtype)


@kind(fast=True)
def one_float64_module() -> Any:
    model = tiny_llama()
    model.model.layers[1].mlp.down_proj = InFloat64(model.model.layers[1].mlp.down_proj)
    return model


@kind("auto")
def head_in_float64() -> Any:
    model = tiny_llama()
    model.lm_head = InFloat64(model.lm_head)
    return model


@kind("auto", known=("reference",))
def norms_in_float32() -> Any:
    """`bfloat16()` rounds the rotary frequencies as well, which is found."""
    model = tiny_llama().bfloat16()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.float()
    return model


class Around(nn.Module):
    """A module that holds a model and names its arguments."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
    ) -> Any:
        return self.inner(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )


class Keywords(nn.Module):
    """A module around a model whose forward names nothing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class LogitsOnly(nn.Module):
    """A module that takes ids and returns a tensor, without a cache."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.backbone = inner

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.backbone(input_ids=input_ids, use_cache=False).logits


@kind(fast=True)
def module_around_the_model() -> Any:
    return Around(tiny_llama())


@kind(fast=True)
def module_of_keywords() -> Any:
    return Keywords(tiny_llama())


@kind("bfloat16")
def module_with_the_config() -> Any:
    wrapped = Keywords(tiny_llama())
    wrapped.config = wrapped.model.config
    return wrapped


@kind()
def module_that_returns_logits() -> Any:
    return LogitsOnly(tiny_llama())


@kind(fast=True)
def data_parallel() -> Any:
    return nn.DataParallel(tiny_llama())


class TakesKeywords(transformers.LlamaForCausalLM):
    """A subclass that passes on whatever it gets."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


@kind()
def subclass_of_keywords() -> Any:
    model = tiny_llama()
    model.__class__ = TakesKeywords
    return model


class UnderAutocast(nn.Module):
    """A module that runs the model in automatic mixed precision."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner

    def forward(self, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(**kwargs)


@kind()
def under_autocast() -> Any:
    return UnderAutocast(tiny_llama())


def adapted(make: str, **options: Any) -> Any:
    import peft

    torch.manual_seed(1)
    config = getattr(peft, make)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(tiny_llama(), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                value.add_(0.3 * torch.randn(value.shape))
                assert name
    return model


@kind(needs=("peft",))
def peft_lora() -> Any:
    return adapted("LoraConfig", r=4, target_modules=["q_proj", "v_proj"])


@kind("bfloat16", needs=("peft",), known=("gradient",))
def peft_dora_on_all() -> Any:
    """Its gradient leaves out the norm of the weights, as its authors propose."""
    return adapted("LoraConfig", r=4, target_modules="all-linear", use_dora=True)


@kind(needs=("peft",))
def peft_ia3() -> Any:
    return adapted(
        "IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    )


@kind(needs=("peft",))
def peft_prompt_tuning() -> Any:
    return adapted("PromptTuningConfig", num_virtual_tokens=4)


@kind(needs=("peft",))
def peft_prompt_encoder() -> Any:
    return adapted("PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=16)


@kind(needs=("peft",))
def peft_prefix_tuning() -> Any:
    return adapted("PrefixTuningConfig", num_virtual_tokens=4)


@kind(fast=True)
def weight_norm() -> Any:
    model = tiny_llama()
    for layer in model.model.layers:
        parametrizations.weight_norm(layer.self_attn.q_proj)
    return model


@kind()
def gradient_checkpointing_on() -> Any:
    model = tiny_llama()
    model.gradient_checkpointing_enable()
    return model.train()


@kind("bfloat16", fast=True)
def dropout_in_train_mode() -> Any:
    return tiny_llama(attention_dropout=0.2).train()


@kind()
def shared_layers() -> Any:
    """Two layers that are one module, but for their number in the cache."""
    model = tiny_llama()
    first, second = model.model.layers
    second.mlp = first.mlp
    second.self_attn.q_proj = first.self_attn.q_proj
    return model


@kind("bfloat16")
def deep_copy_of_a_used_model() -> Any:
    model = tiny_llama()
    model(input_ids=torch.arange(3, 40)[None])
    return copy.deepcopy(model)
