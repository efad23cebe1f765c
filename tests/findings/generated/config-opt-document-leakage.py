"""OPTForCausalLM, restarted positions, no mask, cache off: reproduced by document-leak (transformers 5.24.0, torch 2.13.0+cpu, seed 0)."""
import sys, torch, transformers
config = transformers.OPTConfig(**{'vocab_size': 128, 'hidden_size': 64, 'num_hidden_layers': 4, 'ffn_dim': 96, 'max_position_embeddings': 512, 'do_layer_norm_before': True, '_remove_final_layer_norm': False, 'word_embed_proj_dim': 64, 'dropout': 0.1, 'attention_dropout': 0.0, 'num_attention_heads': 4, 'activation_function': 'relu', 'layerdrop': 0.0, 'init_std': 0.02, 'use_cache': True, 'pad_token_id': 1, 'bos_token_id': 2, 'eos_token_id': 2, 'enable_bias': True, 'layer_norm_elementwise_affine': True, 'tie_word_embeddings': True})
torch.manual_seed(0)
model = transformers.OPTForCausalLM(config).eval()
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
want = logits([[110, 51, 99, 2, 55, 7, 35, 125, 67, 64, 53, 2, 102, 108, 40, 125, 63, 47, 76, 116, 118, 29, 66, 19]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]
got = logits([[109, 62, 25, 29, 55, 7, 35, 125, 67, 64, 53, 2, 102, 108, 40, 125, 63, 47, 76, 116, 118, 29, 66, 19]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]
model.double()
noise = (want - logits([[110, 51, 99, 2, 55, 7, 35, 125, 67, 64, 53, 2, 102, 108, 40, 125, 63, 47, 76, 116, 118, 29, 66, 19]], positions=[[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])[0, 4:]).abs().max()
apart = (got - want).abs().amax(-1)
worst = int(apart.argmax())
print("expected", want[worst][:4].tolist(), "observed", got[worst][:4].tolist())
print(f"largest difference {apart.max():.3g} at row {worst} of {len(apart)}, rounding explains {noise:.1g}")
sys.exit(bool(apart.max() > 10 * noise))
