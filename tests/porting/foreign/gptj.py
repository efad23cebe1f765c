"""GPT-J as a plain function ids -> logits over lists of tensors; rotation by complex numbers or by even/odd slices."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn.functional as F

FAULTS = (
    "rope-halves",
    "rope-dim-12",
    "no-head-bias",
    "no-scale",
    "gelu-exact",
    "mlp-reads-x",
    "fc-bias-l1",
    "q-k-exchanged-l2",
    "rope-on-last",
)
STYLES = ("", "complex")


def port(model, fault="", style=""):
    c = model.config
    sd = {k: v.clone() for k, v in model.state_dict().items()}
    H = c.n_head
    emb, lnf, head = (
        sd["transformer.wte.weight"],
        (sd["transformer.ln_f.weight"], sd["transformer.ln_f.bias"]),
        [sd["lm_head.weight"], sd["lm_head.bias"]],
    )
    blocks = [
        [
            sd[f"transformer.h.{i}.{n}"]
            for n in (
                "ln_1.weight",
                "ln_1.bias",
                "attn.q_proj.weight",
                "attn.k_proj.weight",
                "attn.v_proj.weight",
                "attn.out_proj.weight",
                "mlp.fc_in.weight",
                "mlp.fc_in.bias",
                "mlp.fc_out.weight",
                "mlp.fc_out.bias",
            )
        ]
        for i in range(c.n_layer)
    ]
    R = 12 if fault == "rope-dim-12" else c.rotary_dim

    def turn(x):  # B T H d
        if fault == "rope-on-last":
            x = x.flip(-1)
        y, z = x[..., :R], x[..., R:]
        f = 1.0 / 10000 ** (torch.arange(0, R, 2).float() / R)
        a = torch.outer(torch.arange(x.shape[1]).float(), f)[None, :, None]
        if fault == "rope-halves":
            a1, b1 = y.chunk(2, -1)
        else:
            a1, b1 = y[..., 0::2], y[..., 1::2]
        co, si = a.cos().to(x.dtype), a.sin().to(x.dtype)
        if style == "complex":
            w = torch.complex(
                a1.float() if x.dtype == torch.bfloat16 else a1,
                b1.float() if x.dtype == torch.bfloat16 else b1,
            ) * torch.polar(torch.ones_like(a), a)
            p, q = w.real.to(x.dtype), w.imag.to(x.dtype)
        else:
            p, q = a1 * co - b1 * si, b1 * co + a1 * si
        out = torch.cat(
            (
                torch.cat((p, q), -1)
                if fault == "rope-halves"
                else torch.stack((p, q), -1).flatten(-2),
                z,
            ),
            -1,
        )
        return out.flip(-1) if fault == "rope-on-last" else out

    def logits(ids):
        x = emb[ids]
        B, T, D = x.shape
        for i, (g, b, wq, wk, wv, wo, w1, b1, w2, b2) in enumerate(blocks):
            h = F.layer_norm(x, (D,), g, b, c.layer_norm_epsilon)
            if fault == "q-k-exchanged-l2" and i == 2:
                wq, wk = wk, wq
            q, k, v = ((h @ w.T).reshape(B, T, H, -1) for w in (wq, wk, wv))
            q, k = turn(q), turn(k)
            s = torch.einsum("bthd,bshd->bhts", q, k)
            if fault != "no-scale":
                s = s / q.shape[-1] ** 0.5
            s = s + torch.triu(torch.full((T, T), -1e9, dtype=s.dtype), 1)
            o = torch.einsum("bhts,bshd->bthd", torch.softmax(s, -1), v).reshape(B, T, D) @ wo.T
            u = (x if fault == "mlp-reads-x" else h) @ w1.T + (
                0 if fault == "fc-bias-l1" and i == 1 else b1
            )
            m = F.gelu(u, approximate="none" if fault == "gelu-exact" else "tanh") @ w2.T + b2
            x = x + (o + m)
        y = F.layer_norm(x, (D,), *lnf, c.layer_norm_epsilon) @ head[0].T
        return y if fault == "no-head-bias" else y + head[1]

    return logits
