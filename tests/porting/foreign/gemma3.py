"""Gemma 3 functional, with a dict of weights and einsum; gate and up fused."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "one-rope",  # global table (1e6/8) used in all layers
    "linear-forgotten",  # factor 8 of the global table left out
    "window-on-wrong",  # layer pattern shifted: layers 0 and 2... full first
    "scale-head-dim",  # head_dim**-0.5 scale
    "qk-norm-plain",  # q/k norm scaled by w in place of 1+w
    "gelu-erf",  # exact gelu
    "post-ffn-norm-missing-l1",  # post feed-forward norm of layer 1 missing
    "no-embed-scale",  # embedding scale forgotten
    "norm-half",  # all norms computed without upcast (only in half)
    "kv-groups",  # grouped heads tiled
)


class Gemma(nn.Module):
    def __init__(self, model, fault):
        super().__init__()
        self.cfg = model.config
        self.fault = fault
        sd = {k.removeprefix("model."): v.clone() for k, v in model.state_dict().items()}
        L = self.cfg.num_hidden_layers
        self.embedder = nn.Parameter(sd["embed_tokens.weight"])
        self.final = nn.Parameter(sd["norm.weight"])
        H, K, d = self.cfg.num_attention_heads, self.cfg.num_key_value_heads, self.cfg.head_dim
        self.blocks = nn.ModuleList()
        for i in range(L):
            w = lambda n: sd[f"layers.{i}.{n}.weight"]
            b = nn.Module()
            b.q_einsum = nn.Parameter(
                w("self_attn.q_proj").view(H, d, -1).permute(0, 2, 1).contiguous()
            )  # N D H
            b.kv_einsum = nn.Parameter(
                torch.stack(
                    (w("self_attn.k_proj").view(K, d, -1), w("self_attn.v_proj").view(K, d, -1))
                )
                .permute(0, 1, 3, 2)
                .contiguous()
            )
            b.attn_vec = nn.Parameter(
                w("self_attn.o_proj").view(-1, H, d).permute(1, 2, 0).contiguous()
            )
            b.gating = nn.Parameter(
                torch.stack((w("mlp.gate_proj").T, w("mlp.up_proj").T)).contiguous()
            )
            b.linear = nn.Parameter(w("mlp.down_proj").T.contiguous())
            for s, n in (
                ("pre_attn", "input_layernorm"),
                ("post_attn", "post_attention_layernorm"),
                ("pre_ffw", "pre_feedforward_layernorm"),
                ("post_ffw", "post_feedforward_layernorm"),
                ("qn", "self_attn.q_norm"),
                ("kn", "self_attn.k_norm"),
            ):
                setattr(b, s, nn.Parameter(w(n)))
            self.blocks.append(b)

    def rms(self, x, w, plain=False):
        dt = x.dtype
        if self.fault != "norm-half" and dt != torch.float64:
            x = x.float()
        y = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + self.cfg.rms_norm_eps)
        if self.fault != "norm-half" and dt != torch.float64:
            w = w.float()
        return (y * (w if plain else 1 + w)).to(dt)

    def rope(self, x, pos, base, scale):
        half = x.shape[-1] // 2
        ts = base ** (2 * torch.arange(half, dtype=torch.float32) / x.shape[-1])
        ang = (pos.float()[:, None] / ts / scale)[:, None]
        s, c = ang.sin().to(x.dtype), ang.cos().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def forward(self, tokens):
        c, f = self.cfg, self.fault
        x = self.embedder[tokens]
        if f != "no-embed-scale":
            x = x * torch.tensor(c.hidden_size**0.5, dtype=x.dtype)
        T = tokens.shape[1]
        pos = torch.arange(T)
        rel = pos[:, None] - pos[None]
        types = list(c.layer_types)
        if f == "window-on-wrong":
            types = types[-1:] + types[:-1]
        for i, b in enumerate(self.blocks):
            local = c.layer_types[i] == "sliding_attention"
            base, scale = (
                (10000.0, 1.0)
                if local and f != "one-rope"
                else (1e6, 1.0 if f == "linear-forgotten" else 8.0)
            )
            h = self.rms(x, b.pre_attn)
            q = torch.einsum("BTD,NDH->BTNH", h, b.q_einsum)
            k, v = torch.einsum("BSD,CKDH->CBSKH", h, b.kv_einsum)
            q = self.rms(q, b.qn, f == "qk-norm-plain")
            k = self.rms(k, b.kn, f == "qk-norm-plain")
            q = (
                self.rope(q, pos, base, scale)
                * (c.head_dim if f == "scale-head-dim" else c.query_pre_attn_scalar) ** -0.5
            )
            k = self.rope(k, pos, base, scale)
            B, T, N, Hd = q.shape
            K = k.shape[2]
            if f == "kv-groups":
                q = q.view(B, T, N // K, K, Hd).transpose(2, 3)
            else:
                q = q.view(B, T, K, N // K, Hd)
            s = torch.einsum("BTKGH,BSKH->BTKGS", q, k)
            m = rel >= 0
            if types[i] == "sliding_attention":
                m = m & (rel < c.sliding_window)
            p = torch.where(m[None, :, None, None], s, -2.3819763e38).softmax(-1)
            o = torch.einsum("BTKGS,BSKH->BTKGH", p, v)
            if f == "kv-groups":
                o = o.transpose(2, 3)
            a = torch.einsum("BTNH,NHD->BTD", o.reshape(B, T, N, Hd), b.attn_vec)
            x = x + self.rms(a, b.post_attn)
            g, u = torch.einsum("BTD,CDF->CBTF", self.rms(x, b.pre_ffw), b.gating)
            y = (F.gelu(g, approximate="none" if f == "gelu-erf" else "tanh") * u) @ b.linear
            x = x + (y if f == "post-ffn-norm-missing-l1" and i == 1 else self.rms(y, b.post_ffw))
        return self.rms(x, self.final) @ self.embedder.T


def port(model, fault=""):
    return Gemma(model, fault).eval()
