"""RoBERTa masked LM written as functions over a nested dict; positions start at padding_idx + 1."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn.functional as F

FAULTS = (
    "positions-from-zero",
    "ln-before-residual-l1",
    "relu",
    "q-bias-l2",
    "o-transposed",
    "head-gelu-skipped",
)
STYLES = ("",)


def port(model, fault="", style=""):
    c = model.config
    sd = {k: v.clone() for k, v in model.state_dict().items()}
    R = "roberta."
    H = c.num_attention_heads
    P = {
        "emb": {
            k: sd[R + f"embeddings.{k}.weight"]
            for k in ("word_embeddings", "position_embeddings", "token_type_embeddings")
        },
        "ln": [sd[R + "embeddings.LayerNorm.weight"], sd[R + "embeddings.LayerNorm.bias"]],
        "layers": [
            {k.split(f"layer.{i}.")[1]: v for k, v in sd.items() if f"encoder.layer.{i}." in k}
            for i in range(c.num_hidden_layers)
        ],
        "head": {k.removeprefix("lm_head."): v for k, v in sd.items() if k.startswith("lm_head.")},
    }
    if fault == "o-transposed":
        for l in P["layers"]:
            l["attention.output.dense.weight"] = l["attention.output.dense.weight"].T.contiguous()
    if fault == "q-bias-l2":
        P["layers"][2]["attention.self.query.bias"].zero_()
    ln = lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, c.layer_norm_eps)

    def logits(ids):
        T = ids.shape[1]
        at = torch.arange(T) + (0 if fault == "positions-from-zero" else c.pad_token_id + 1)
        x = ln(
            P["emb"]["word_embeddings"][ids]
            + P["emb"]["token_type_embeddings"][0]
            + P["emb"]["position_embeddings"][at],
            *P["ln"],
        )
        for i, l in enumerate(P["layers"]):
            lin = lambda y, n: y @ l[n + ".weight"].T + l[n + ".bias"]
            q, k, v = (
                lin(x, f"attention.self.{n}").unflatten(-1, (H, -1)).movedim(2, 1)
                for n in ("query", "key", "value")
            )
            o = F.scaled_dot_product_attention(q, k, v).movedim(1, 2).flatten(2)
            o = lin(o, "attention.output.dense")
            w = [l["attention.output.LayerNorm.weight"], l["attention.output.LayerNorm.bias"]]
            h = x + ln(o, *w) if fault == "ln-before-residual-l1" and i == 1 else ln(o + x, *w)
            m = lin(h, "intermediate.dense")
            m = m.relu() if fault == "relu" else F.gelu(m)
            x = ln(
                lin(m, "output.dense") + h, l["output.LayerNorm.weight"], l["output.LayerNorm.bias"]
            )
        h = P["head"]
        t = x @ h["dense.weight"].T + h["dense.bias"]
        if fault != "head-gelu-skipped":
            t = F.gelu(t)
        return (
            ln(t, h["layer_norm.weight"], h["layer_norm.bias"]) @ P["emb"]["word_embeddings"].T
            + h["bias"]
        )

    return logits
