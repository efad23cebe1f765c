"""EXAONE 4 as a plain function over a state dict with its weights transposed."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn.functional as F

FAULTS = (
    "pre-norm",
    "rope-on-global",
    "no-rope-local",
    "window-everywhere",
    "no-window",
    "window-minus-one",
    "no-k-norm",
    "qk-norm-after-rope",
    "scale-twice",
    "q-rows-permuted-l2",
    "post-attn-norm-missing-l1",
    "norms-exchanged-l1",
    "head-untied",
    "gelu",
)


def port(model, fault="", style=""):
    c, f = model.config, fault
    sd = {
        k.replace("model.", "").replace("layers.", "blk."): v.detach().clone().T.contiguous()
        if v.ndim == 2 and "embed" not in k
        else v.detach().clone()
        for k, v in model.state_dict().items()
    }
    H, K, D = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    if f == "q-rows-permuted-l2":
        w = sd["blk.2.self_attn.q_proj.weight"]
        sd["blk.2.self_attn.q_proj.weight"] = (
            w.view(-1, H, 2, D // 2).transpose(2, 3).reshape(w.shape).contiguous()
        )
    if f == "norms-exchanged-l1":
        a, b = "blk.1.post_attention_layernorm.weight", "blk.1.post_feedforward_layernorm.weight"
        sd[a], sd[b] = sd[b], sd[a]
    if f == "head-untied":
        sd["head"] = (
            torch.randn(c.vocab_size, c.hidden_size, generator=torch.Generator().manual_seed(5))
            * 0.7
        )

    def rms(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.rms_norm_eps) * w

    def rope(x, T):
        a = torch.outer(torch.arange(T).float(), 1e4 ** (-torch.arange(0, D, 2).float() / D))
        cs, sn = a.cos().to(x.dtype), a.sin().to(x.dtype)
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * cs - x2 * sn, x2 * cs + x1 * sn], -1)

    def run(ids):
        T = ids.shape[1]
        x = F.embedding(ids, sd["embed_tokens.weight"])
        i_, j_ = torch.arange(T)[:, None], torch.arange(T)[None]
        for n in range(c.num_hidden_layers):
            p = lambda k: sd[f"blk.{n}.{k}.weight"]
            local = c.layer_types[n] == "sliding_attention"
            h = rms(x, p("post_attention_layernorm")) if f == "pre-norm" else x
            q, k, v = (
                (h @ p(f"self_attn.{t}_proj")).unflatten(-1, (-1, D)).transpose(1, 2) for t in "qkv"
            )
            turn = (local or f == "rope-on-global") and not f == "no-rope-local"
            if f == "qk-norm-after-rope" and turn:
                q, k = rope(q, T), rope(k, T)
            q = rms(q, p("self_attn.q_norm"))
            k = k if f == "no-k-norm" else rms(k, p("self_attn.k_norm"))
            if turn and f != "qk-norm-after-rope":
                q, k = rope(q, T), rope(k, T)
            ok = j_ <= i_
            W = c.sliding_window - (f == "window-minus-one")
            if (local or f == "window-everywhere") and f != "no-window":
                ok = ok & (i_ - j_ < W)
            g = H // K
            k, v = (t.repeat_interleave(g, 1) for t in (k, v))
            s = (q @ k.mT) * (1 / D if f == "scale-twice" else D**-0.5)
            a = (torch.where(ok, s, torch.tensor(-1e9, dtype=s.dtype)).softmax(-1) @ v).transpose(
                1, 2
            ).flatten(2) @ p("self_attn.o_proj")
            x = x + (
                a
                if f == "pre-norm" or (f == "post-attn-norm-missing-l1" and n == 1)
                else rms(a, p("post_attention_layernorm"))
            )
            h = rms(x, p("post_feedforward_layernorm")) if f == "pre-norm" else x
            m = (
                (F.gelu if f == "gelu" else F.silu)(h @ p("mlp.gate_proj")) * (h @ p("mlp.up_proj"))
            ) @ p("mlp.down_proj")
            x = x + (m if f == "pre-norm" else rms(m, p("post_feedforward_layernorm")))
        return rms(x, sd["norm.weight"]) @ sd.get("head", sd["embed_tokens.weight"]).T

    return run
