"""Two processes share a model by transformers' own plan, and it is another model.

Gemma 3n lets the largest gates of its first layers through, by a mean and a spread that each
process takes of its own part. The fused projections of an HRM checkpoint are cut before they are
taken apart, so that each process gets rows of the wrong ones, without a missing key. Inkling 2
computes right, but its packed gates are put together in another order when it is saved. The number
is the largest logit difference against the same folder in one process; for Inkling 2, of what was
saved and loaded again.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
GEMMA = {
    **SIZE,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size_per_layer_input": 64,
    "laurel_rank": 4,
}
GEMMA |= {
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "altup_num_inputs": 2,
    "layer_types": ["full_attention"] * 2,
}
HRM = {**SIZE, "num_layers_per_stack": 1, "intermediate_size": 64}
INKLING = {
    **SIZE,
    "num_hidden_layers": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 8,
}
INKLING |= {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "unpadded_vocab_size": 64,
    "d_rel": 8,
}
INKLING |= {
    "rel_extent": 32,
    "layer_types": ["hybrid"] * 2,
    "n_layers_per_attn_res_block": 2,
    "eos_token_id": 1,
}
LLAMA = {**SIZE, "num_hidden_layers": 2, "intermediate_size": 64}
MADE = {
    "hrm_text": ("HrmText", HRM),
    "gemma3n": ("Gemma3nText", {**GEMMA, "activation_sparsity_pattern": [0.95, 0.95]}),
    "gemma3n without sparse gates": (
        "Gemma3nText",
        {**GEMMA, "activation_sparsity_pattern": [0.0, 0.0]},
    ),
    "inkling2 saved": ("Inkling2Text", INKLING),
    "inkling2": ("Inkling2Text", INKLING),
    "llama": ("Llama", LLAMA),
}
ROW = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))


def written(name: str, folder: Path) -> None:
    kind, size = MADE[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, f"{kind}Config")(**size)
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)


def loaded(folder: Path, **options: object) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@torch.no_grad()
def apart(name: str, folder: Path) -> float:
    """Run in both processes."""
    from transformers.distributed import DistributedConfig

    right = loaded(folder)(ROW, use_cache=False).logits
    shared = loaded(folder, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto"))
    if name.endswith("saved"):
        shared.save_pretrained(folder / "again")
        torch.distributed.barrier()
        shared = loaded(folder / "again")
    return (shared(ROW, use_cache=False).logits - right).abs().max().item()


def main() -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
        }
    with tempfile.TemporaryDirectory() as name:
        for each in MADE:
            written(each, Path(name) / each.replace(" ", "-"))
        running = []
        for rank in ("0", "1"):
            there = {**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank, "TQDM_DISABLE": "1"}
            running.append(
                subprocess.Popen(
                    [sys.executable, __file__, name], env=there, stdout=subprocess.PIPE, text=True
                )
            )
        said = [process.communicate(timeout=120)[0] for process in running]
    return json.loads(said[0].splitlines()[-1])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.distributed.init_process_group("gloo")
        print(
            json.dumps(
                {each: apart(each, Path(sys.argv[1]) / each.replace(" ", "-")) for each in MADE}
            )
        )
    else:
        for name, number in main().items():
            print(f"{name:30s} {number:.2g}")
