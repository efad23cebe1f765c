"""Mamba in the manner of mamba-minimal: a scan over time, projections split at load."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "A-sign",
    "A-not-exp",
    "no-softplus",
    "no-dt-bias",
    "D-dropped",
    "conv-flipped",
    "conv-not-causal",
    "B-C-swapped",
    "gate-halves-swapped",
    "no-conv-act",
    "gate-no-silu",
    "eps-l",
    "conv-bias-l1",
    "residual-of-norm",
)


class Block(nn.Module):
    def __init__(self, src, f, i):
        super().__init__()
        m = src.mixer
        self.f = f
        self.i = i
        self.in_proj = nn.Linear(m.hidden_size, 2 * m.intermediate_size)
        self.conv_w = nn.Parameter(m.conv1d.weight.detach().clone().squeeze(1))
        self.conv_b = nn.Parameter(m.conv1d.bias.detach().clone())
        self.in_proj.load_state_dict(m.in_proj.state_dict())
        w = m.x_proj.weight.detach()
        self.r, self.n = m.time_step_rank, m.ssm_state_size
        self.to_dt = nn.Parameter(w[: self.r].clone())
        self.to_B = nn.Parameter(w[self.r : self.r + self.n].clone())
        self.to_C = nn.Parameter(w[self.r + self.n :].clone())
        self.dt_w = nn.Parameter(m.dt_proj.weight.detach().clone())
        self.dt_b = nn.Parameter(m.dt_proj.bias.detach().clone())
        self.A_log = nn.Parameter(m.A_log.detach().clone())
        self.skip = nn.Parameter(m.D.detach().clone())
        self.out = nn.Linear(m.intermediate_size, m.hidden_size)
        self.out.load_state_dict(m.out_proj.state_dict())
        self.g = nn.Parameter(src.norm.weight.detach().clone())
        self.eps = src.norm.variance_epsilon
        if f == "eps-l":
            self.eps = 1e-3

    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.g

    def mix(self, h):
        f = self.f
        x, z = self.in_proj(h).chunk(2, -1)
        if f == "gate-halves-swapped":
            x, z = z, x
        K = self.conv_w.shape[1]
        T = x.shape[1]
        w = self.conv_w.flip(1) if f == "conv-flipped" else self.conv_w
        pad = (K // 2, K - 1 - K // 2) if f == "conv-not-causal" else (K - 1, 0)
        xp = F.pad(x.transpose(1, 2), pad)
        x = F.conv1d(
            xp,
            w[:, None],
            None if (f == "conv-bias-l1" and self.i == 1) else self.conv_b,
            groups=w.shape[0],
        ).transpose(1, 2)
        if f != "no-conv-act":
            x = F.silu(x)
        dt, B, C = F.linear(x, self.to_dt), F.linear(x, self.to_B), F.linear(x, self.to_C)
        if f == "B-C-swapped":
            B, C = C, B
        dt = F.linear(dt, self.dt_w, None if f == "no-dt-bias" else self.dt_b)
        dt = dt if f == "no-softplus" else F.softplus(dt)
        A = self.A_log if f == "A-not-exp" else torch.exp(self.A_log)
        A = A if f == "A-sign" else -A
        if f == "A-sign":
            dt = dt * 0.2
        dA = torch.exp(torch.einsum("btd,dn->btdn", dt, A))
        dBx = torch.einsum("btd,btn,btd->btdn", dt, B, x)
        s = torch.zeros_like(dA[:, 0])
        ys = []
        for t in range(T):
            s = dA[:, t] * s + dBx[:, t]
            ys.append(torch.einsum("bdn,bn->bd", s, C[:, t]))
        y = torch.stack(ys, 1)
        if f != "D-dropped":
            y = y + x * self.skip
        y = y * (z if f == "gate-no-silu" else F.silu(z))
        return self.out(y)

    def forward(self, x):
        h = self.norm(x)
        return (h if self.f == "residual-of-norm" else x) + self.mix(h)


class Port(nn.Module):
    def __init__(self, model, f):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(
            model.backbone.embeddings.weight.detach().clone(), freeze=False
        )
        self.layers = nn.ModuleList(Block(b, f, i) for i, b in enumerate(model.backbone.layers))
        self.norm_f = nn.Parameter(model.backbone.norm_f.weight.detach().clone())
        self.eps = model.backbone.norm_f.variance_epsilon

    def forward(self, ids):
        x = self.embedding(ids)
        for l in self.layers:
            x = l(x)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm_f
        return x @ self.embedding.weight.T


def port(model, fault="", style=""):
    p = Port(model, fault)
    if fault == "A-sign":  # a sane magnitude: the reporter would see growing states
        pass
    return p.eval()
