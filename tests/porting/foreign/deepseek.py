"""DeepSeek V3: latent attention with absorbed names, einsum, experts one by one."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = (
    "router-not-normalised",
    "no-q-latent-norm",
    "scale-without-rope",
    "rope-halves",
    "no-routed-scale",
    "no-shared-expert",
    "bias-in-weights",
    "groups-ignored",
)


class MLA(nn.Module):
    def __init__(self, s, p, c, fault):
        super().__init__()
        self.c, self.fault = c, fault
        w = lambda n: nn.Parameter(s[p + n + ".weight"].clone())  # noqa: E731
        self.wq_a, self.q_scale, self.wq_b = w("q_a_proj"), w("q_a_layernorm"), w("q_b_proj")
        self.wkv_a, self.kv_scale, self.wkv_b = (
            w("kv_a_proj_with_mqa"),
            w("kv_a_layernorm"),
            w("kv_b_proj"),
        )
        self.wo = w("o_proj")

    def norm(self, x, scale):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def rope(self, x):
        """(B, T, H, R), neighbours are pairs."""
        B, T, H, R = x.shape
        f = self.c.rope_parameters["rope_theta"] ** (
            -torch.arange(0, R, 2, device=x.device).float() / R
        )
        cis = torch.polar(
            torch.ones(T, R // 2, device=x.device),
            torch.outer(torch.arange(T, device=x.device).float(), f),
        )
        y = x.float().reshape(B, T, H, R // 2, 2)
        if self.fault == "rope-halves":
            y = x.float().reshape(B, T, H, 2, R // 2).transpose(-1, -2)
        z = torch.view_as_complex(y.contiguous()) * cis[None, :, None]
        return torch.view_as_real(z).flatten(3).to(x.dtype)

    def forward(self, x):
        c, (B, T, _) = self.c, x.shape
        H, N, R, V = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
        qa = F.linear(x, self.wq_a)
        qa = qa if self.fault == "no-q-latent-norm" else self.norm(qa, self.q_scale)
        q = F.linear(qa, self.wq_b).view(B, T, H, N + R)
        q_nope, q_pe = q[..., :N], self.rope(q[..., N:])
        kv, k_pe = F.linear(x, self.wkv_a).split([c.kv_lora_rank, R], -1)
        k_pe = self.rope(k_pe[:, :, None])[:, :, 0]
        latent = self.norm(kv, self.kv_scale)
        wkv = self.wkv_b.view(H, N + V, -1)
        q_lat = torch.einsum("bthn,hnc->bthc", q_nope, wkv[:, :N])
        s = torch.einsum("bthc,bsc->bhts", q_lat, latent) + torch.einsum(
            "bthr,bsr->bhts", q_pe, k_pe
        )
        s = s * (N if self.fault == "scale-without-rope" else N + R) ** -0.5
        s = s.masked_fill(torch.ones(T, T, device=x.device).triu(1).bool(), -torch.inf).softmax(-1)
        o = torch.einsum("bhts,bsc->bthc", s, latent)
        o = torch.einsum("bthc,hvc->bthv", o, wkv[:, N:])
        return F.linear(o.flatten(2), self.wo)


class Glu(nn.Module):
    def __init__(self, gate, up, down):
        super().__init__()
        self.w1, self.w3, self.w2 = (nn.Parameter(x.clone()) for x in (gate, up, down))

    def forward(self, x):
        return F.linear(F.silu(F.linear(x, self.w1)) * F.linear(x, self.w3), self.w2)


class MoE(nn.Module):
    def __init__(self, s, p, c, fault):
        super().__init__()
        self.c, self.fault = c, fault
        self.router = nn.Parameter(s[p + "gate.weight"].clone())
        self.register_buffer("router_bias", s[p + "gate.e_score_correction_bias"].clone())
        gu, down = s[p + "experts.gate_up_proj"], s[p + "experts.down_proj"]
        self.experts = nn.ModuleList(
            Glu(*gu[e].chunk(2, 0), down[e]) for e in range(c.n_routed_experts)
        )
        self.shared = Glu(
            *(s[p + f"shared_experts.{n}_proj.weight"] for n in ("gate", "up", "down"))
        )

    def forward(self, x):
        c, shape = self.c, x.shape
        x = x.flatten(0, 1)
        p = torch.sigmoid(x.float() @ self.router.float().T)
        choice = p + self.router_bias
        if self.fault != "groups-ignored":
            groups = choice.view(len(x), c.n_group, -1)
            best = groups.topk(2, -1).values.sum(-1).topk(c.topk_group, -1).indices
            keep = torch.zeros(len(x), c.n_group, device=x.device).scatter(1, best, 1).bool()
            choice = groups.masked_fill(~keep[..., None], 0.0).flatten(1)
        top = choice.topk(c.num_experts_per_tok, -1).indices
        w = (choice if self.fault == "bias-in-weights" else p).gather(1, top)
        if self.fault != "router-not-normalised":
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        if self.fault != "no-routed-scale":
            w = w * c.routed_scaling_factor
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(top == e)
            if len(rows):
                out[rows] += expert(x[rows]) * w[rows, slot, None].to(x.dtype)
        if self.fault != "no-shared-expert":
            out = out + self.shared(x)
        return out.view(shape)


class DeepSeek(nn.Module):
    def __init__(self, s, c, fault):
        super().__init__()
        P = lambda n: nn.Parameter(s[n].clone())  # noqa: E731
        self.emb, self.head, self.norm = (
            P("model.embed_tokens.weight"),
            P("lm_head.weight"),
            P("model.norm.weight"),
        )
        self.mixers, self.ffns, self.n1, self.n2 = (
            nn.ModuleList(),
            nn.ModuleList(),
            nn.ParameterList(),
            nn.ParameterList(),
        )
        self.eps = c.rms_norm_eps
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            self.mixers.append(MLA(s, p + "self_attn.", c, fault))
            if i < 1:
                self.ffns.append(
                    Glu(*(s[p + f"mlp.{n}_proj.weight"] for n in ("gate", "up", "down")))
                )
            else:
                self.ffns.append(MoE(s, p + "mlp.", c, fault))
            self.n1.append(P(p + "input_layernorm.weight"))
            self.n2.append(P(p + "post_attention_layernorm.weight"))

    def rms(self, x, w):
        return F.rms_norm(x, (x.shape[-1],), w, self.eps)

    def forward(self, ids):
        x = F.embedding(ids, self.emb)
        for a, f, n1, n2 in zip(self.mixers, self.ffns, self.n1, self.n2, strict=True):
            x = x + a(self.rms(x, n1))
            x = x + f(self.rms(x, n2))
        return F.linear(self.rms(x, self.norm), self.head)


def port(model, fault=""):
    """The port as a module."""
    return DeepSeek(model.state_dict(), model.config, fault).eval()
