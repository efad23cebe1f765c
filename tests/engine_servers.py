"""Tiny models behind engines: in this process, behind a small fake of vLLM's API, and in a real
llama.cpp server where xllamacpp is installed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

from attncheck.engines.engine import EngineTraits, Ids
from attncheck.engines.in_process import InProcessEngine
from attncheck.targets.amplify import amplify

BASE = 3217.0
VOCAB = 160


def tiny(**changes: Any) -> Any:
    """A Llama whose rotary base is nobody's default."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**fields, **changes}))
    amplify(model, 0)
    return model.eval()


class TorchModel:
    """A runtime that is transformers itself in some dtype, with or without a cache."""

    def __init__(self, model: Any, dtype: torch.dtype = torch.float32, cached: bool = True) -> None:
        self.model, self.dtype, self.cached = model.to(dtype), dtype, cached

    def state(self) -> Any:
        return transformers.DynamicCache() if self.cached else None

    def logits(self, rows: Sequence[Ids], state: Any) -> torch.Tensor:
        arguments = {"use_cache": False} if state is None else {"past_key_values": state}
        with torch.no_grad():
            return self.model(torch.tensor(rows), **arguments).logits.float()


def torch_engine(model: Any, dtype: torch.dtype = torch.float32, **traits: Any) -> InProcessEngine:
    known = {"scores": True, "cuts": True, "together": 3, "vocab": VOCAB, "context": 256}
    return InProcessEngine("torch", TorchModel(model, dtype), EngineTraits(**{**known, **traits}))


Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words: Any) -> None: ...

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        self._reply(json.loads(self.rfile.read(size) or b"{}"))

    def _reply(self, body: dict[str, Any]) -> None:
        server: Any = self.server
        server.seen.append((self.path, body, dict(self.headers)))
        status, found = server.answer(self.path, body)
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(answer: Answer) -> Iterator[Any]:
    """A server of this process; `.url` and `.seen` (path, body, headers)."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, client: None
    server.daemon_threads = True
    server.answer, server.seen = answer, []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class FakeVllm:
    """What vLLM documents of `/v1/completions`, computed by a tiny model. `wrong` gets the ids, the
    tokens that came from the cache and whether the request scores, and returns other ids.
    """

    def __init__(self, model: Any, version: str = "0.32.0") -> None:
        self.model, self.version = model, version
        self.wrong: Callable[[Ids, int, bool], Ids] = lambda ids, cached, scores: ids
        self.lock, self.kept, self.running = threading.Lock(), {}, 0

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/version" and self.version:
            return 200, {"version": self.version}
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny", "max_model_len": 256}]}
        if path == "/metrics":
            return 200, f'vllm:num_requests_running{{engine="0"}} {self.running}.0\n'.encode()
        if path != "/v1/completions":
            return 404, {"error": {"message": "not here"}}
        if body.get("logprobs", 0) > 20:
            return 400, {"error": {"message": "Requested logprobs of 64, which is greater than 20"}}
        with self.lock:
            self.running += 1
        time.sleep(0.01)
        try:
            with self.lock:
                return 200, self._completion(body)
        finally:
            with self.lock:
                self.running -= 1

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, salt = tuple(body["prompt"]), body.get("cache_salt")
        held = self.kept.setdefault(salt, set())
        hits = [n for n in range(16, len(ids), 16) if ids[:n] in held]
        scores = "prompt_logprobs" in body
        cached = 0 if scores else max(hits, default=0)
        held.update(ids[:n] for n in range(16, len(ids) + 1, 16))
        ids = self.wrong(ids, cached, scores)
        rows, made = [], []
        for _ in range(body["max_tokens"]):
            rows.append(self._rows((*ids, *made))[-1])
            made.append(int(rows[-1].argmax()))
        top = [self._top(row, body["logprobs"]) for row in rows]
        choice: dict[str, Any] = {
            "logprobs": {
                "tokens": [f"token_id:{token}" for token in made],
                "top_logprobs": [{f"token_id:{t}": v for t, v in one.items()} for one in top],
            }
        }
        if scores:
            found = [self._top(row, body["prompt_logprobs"]) for row in self._rows(ids)[:-1]]
            named = [{str(t): {"logprob": v} for t, v in one.items()} for one in found]
            choice["prompt_logprobs"] = [None, *named]
        usage = {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"choices": [choice], "usage": usage}

    def _rows(self, ids: Ids) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    @staticmethod
    def _top(row: torch.Tensor, count: int) -> dict[int, float]:
        best = row.topk(count)
        return dict(zip(best.indices.tolist(), best.values.tolist()))


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(model: Any, path: Path, permuted: bool = True) -> Path:
    """A Llama as a float32 .gguf with a vocabulary of bytes; `permuted` as llama.cpp rotates."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    pieces = [f"<0x{byte:02X}>".encode() for byte in range(100)]
    words = [f"w{number}".encode() for number in range(VOCAB - 103)]
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *pieces, *words])
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([2, 3, 3, *[6] * len(pieces), *[1] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in model.state_dict().items():
        weights = tensor.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part in heads and permuted:
            count = heads[part]
            halves = weights.reshape(count, 2, len(weights) // count // 2, -1)
            weights = halves.swapaxes(1, 2).reshape(weights.shape)
        writer.add_tensor(_gguf_name(name), numpy.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    plain = name.removesuffix(".weight")
    if plain.startswith("model.layers."):
        _, _, layer, rest = plain.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.weight"
    return f"{NAMES[plain]}.weight"


@contextmanager
def llama_server(path: Path, **changes: Any) -> Iterator[str]:
    """The URL of a real llama.cpp server with float32 keys and values and two slots."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.cache_ram_mib = 512, 2, 0
    params.port, params.warmup = 0, False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    flash = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in changes.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server
