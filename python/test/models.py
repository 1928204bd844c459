"""Small models of many families with random weights, for tests of the cache under transformers."""
import torch
import transformers

BASE = dict(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
            max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=None)
HALF = ["sliding_attention", "full_attention"]
FAMILIES = {  # name: (class, what its configuration says besides)
    "llama": ("Llama", {}),
    "llama, dim 32": ("Llama", dict(head_dim=32)),
    "mistral, window": ("Mistral", dict(sliding_window=16)),
    "qwen3": ("Qwen3", {}),
    "gemma2, softcap": ("Gemma2", dict(sliding_window=16, attn_logit_softcapping=0.02, query_pre_attn_scalar=1)),
    "gemma3, window": ("Gemma3", dict(sliding_window=16, layer_types=HALF, config="Gemma3TextConfig")),
    "gpt_oss, sinks": ("GptOss", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=16)),
    "llama4, chunks": ("Llama4", dict(attention_chunk_size=16, intermediate_size_mlp=64, num_local_experts=2, num_experts_per_tok=1,
                                      config="Llama4TextConfig")),
    "gpt2": ("GPT2", dict(n_embd=128, n_layer=2, n_head=2, model="GPT2LMHeadModel")),
    "qwen3_next, hybrid": ("Qwen3Next", dict(num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
                                             shared_expert_intermediate_size=64, linear_num_value_heads=2, linear_num_key_heads=2,
                                             linear_key_head_dim=32, linear_value_head_dim=32)),
    "bloom, alibi": ("Bloom", dict(n_layer=2, n_head=2)),
}


def model(name, attention="aura", dtype=torch.float32, **more):
    family, options = FAMILIES[name]
    options = {**BASE, **options, **more}
    config = getattr(transformers, options.pop("config", f"{family}Config"))
    made = getattr(transformers, options.pop("model", f"{family}ForCausalLM"))
    torch.manual_seed(7)
    out = made(config(**options)).eval().to(dtype)
    out.set_attn_implementation(attention)
    out.generation_config.pad_token_id = 0
    return out


def prompts(batch=2, tokens=40, pads=(7, 0)):
    torch.manual_seed(3)
    ids = torch.randint(2, 128, (batch, tokens))
    mask = torch.ones_like(ids)
    for row, n in enumerate(pads[:batch]):
        ids[row, :n], mask[row, :n] = 0, 0
    return dict(input_ids=ids, attention_mask=mask)
