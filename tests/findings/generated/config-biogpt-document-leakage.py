"""BioGptForCausalLM, restarted positions, no mask, cache off: reproduced by document-leak (transformers 5.24.0, torch 2.13.0+cpu, seed 0)."""
import sys, torch, transformers
config = transformers.BioGptConfig(**{'vocab_size': 128, 'hidden_size': 64, 'num_hidden_layers': 4, 'num_attention_heads': 4, 'intermediate_size': 96, 'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1, 'attention_probs_dropout_prob': 0.1, 'max_position_embeddings': 512, 'initializer_range': 0.02, 'layer_norm_eps': 1e-12, 'scale_embedding': True, 'use_cache': True, 'layerdrop': 0.0, 'activation_dropout': 0.0, 'pad_token_id': 1, 'bos_token_id': 0, 'eos_token_id': 2, 'tie_word_embeddings': True})
torch.manual_seed(0)
model = transformers.BioGptForCausalLM(config).eval()
model.set_attn_implementation("sdpa")
model.set_experts_implementation("eager")
for name, p in model.named_parameters():  # unit gain: at 0.02 a leak can be as small as rounding
    if p.ndim > 1 and p.requires_grad: torch.nn.init.normal_(p, std=1.0 if 'embed' in name else p.shape[-1] ** -0.5)
@torch.no_grad()
def logits(tokens, chunks=(), positions=None, mask=None, use_cache=False):
    ids, cache, replies, start = torch.tensor(tokens), None, [], 0
    for size in chunks or (ids.shape[1],):
        stop = start + size
        call = {"input_ids": ids[:, start:stop]}
        call['use_cache'] = bool(chunks) or use_cache
        if positions: call['position_ids'] = torch.tensor(positions)[:, start:stop]
        reply = model(**call, **({"cache": cache} if cache is not None else {}))
        cache, start = getattr(reply, "cache", None), stop
        replies.append(reply.logits)
    return torch.cat(replies, 1)
want = logits([[111, 52, 100, 2, 56, 8, 36, 126, 68, 65, 54, 2, 103, 109, 41, 126, 64, 48, 77, 117, 119, 30, 67, 20]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]
got = logits([[110, 63, 26, 30, 56, 8, 36, 126, 68, 65, 54, 2, 103, 109, 41, 126, 64, 48, 77, 117, 119, 30, 67, 20]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]
model.double()
noise = (want - logits([[111, 52, 100, 2, 56, 8, 36, 126, 68, 65, 54, 2, 103, 109, 41, 126, 64, 48, 77, 117, 119, 30, 67, 20]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]).abs().max()
apart = (got - want).abs().amax(-1)
worst = int(apart.argmax())
print("expected", want[worst][:4].tolist(), "observed", got[worst][:4].tolist())
print(f"largest difference {apart.max():.3g} at row {worst} of {len(apart)}, rounding explains {noise:.1g}")
sys.exit(bool(apart.max() > 10 * noise))
