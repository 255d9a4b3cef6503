"""Tiny random models of every family, with golden logits by `transformers`.

    make_tiny_models.py OUT_DIR

writes <name>.gguf and <name>.golden for each row of MODELS. The weights are
drawn, quantised as the row says, and the dequantised values are what
`transformers` computes with in float64: the golden logits are those of an
implementation that shares nothing with the program. Needs: pip install torch
transformers gguf numpy.

Llama checkpoints rotate dimension i of a head together with i + d/2. Their
GGUF files rotate neighbours 2i and 2i + 1 instead, so the rows of Q and K of
each head are reordered when such a file is written: row 2i is the old row i
and row 2i + 1 the old row i + d/2. The Qwen families are stored as they are.

gguf has no quantiser for the K types: their blocks are drawn as bits, with
scales that give weights of the usual size.
"""

import os
import sys

import gguf
import numpy as np
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Q

import golden_file

N_VOCAB, N_LAYERS = 256, 2

# name: family, heads, KV heads, head_dim, E, F, tied, types (taken in turn by
# the matrices of a layer), type of the embedding, of the head, tokens, rope.
MODELS = {
    "llama-mha-64": (
        "llama", 2, 2, 64, 64, 64, True, ["F32"], "F32", None, 64, None
    ),
    "llama-gqa3-64": (
        "llama", 3, 1, 64, 96, 160, True, ["Q4_1"], "Q8_0", None, 1100, None
    ),
    "llama-gqa4-80-llama3": (
        "llama", 4, 1, 80, 96, 128, False, ["Q4_0"], "F16", "Q5_1", 200,
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    ),
    "llama-gqa2-96-linear": (
        "llama", 2, 1, 96, 96, 96, False, ["BF16"], "Q4_0", "Q4_1", 100,
        {"rope_type": "linear", "factor": 2.5}
    ),
    "qwen2-gqa7-64": (
        "qwen2", 7, 1, 64, 64, 96, True, ["Q5_0", "Q8_0"], "Q5_0", None, 64,
        None
    ),
    "qwen2-mha-128": (
        "qwen2", 1, 1, 128, 128, 160, False, ["Q8_0"], "Q5_0", "Q8_0", 100,
        None
    ),
    "qwen3-gqa2-128": (
        "qwen3", 4, 2, 128, 64, 96, True, ["Q5_1"], "Q5_1", None, 600, None
    ),
    "qwen3-gqa3-96": (
        "qwen3", 3, 1, 96, 64, 64, False, ["F16"], "BF16", "F32", 64, None
    ),
    "qwen3-gqa4-80-k": (
        "qwen3", 4, 1, 80, 256, 256, True, ["Q4_K", "Q5_K", "Q6_K"], "Q6_K",
        None, 64, None
    ),
    "llama-gqa2-128-k": (
        "llama", 2, 1, 128, 256, 256, False, ["Q5_K", "Q6_K", "Q4_K"], "Q4_K",
        "Q5_K", 64, None
    ),
}


def k_blocks(rng, kind, n):
    """n random blocks of a K type as bytes, weights of about N(0, s)."""
    s = 0.06

    def half(x):
        return np.full((n, 1), x, "<f2").view(np.uint8)

    def bits(size):
        return rng.integers(0, 256, (n, size), dtype=np.uint8)

    if kind == "Q4_K":
        parts = [half(s / 150), half(s / 150 * 7.5), bits(12), bits(128)]
    elif kind == "Q5_K":
        parts = [half(s / 300), half(s / 300 * 15.5), bits(12), bits(160)]
    else:
        parts = [bits(192), bits(16), half(s / 1400)]
    return np.concatenate(parts, axis=1)


def quantise(rng, kind, w):
    """(type, bytes for the file, the values they stand for)."""
    if kind.endswith("_K") and w.shape[1] % 256 != 0:
        kind = "Q8_0"  # what quantisers fall back to
    q = Q[kind]
    if kind.endswith("_K"):
        n = w.size // 256
        data = k_blocks(rng, kind, n).reshape(w.shape[0], -1)
    else:
        data = gguf.quants.quantize(w.astype(np.float32), q)
    return q, data, gguf.quants.dequantize(data, q).reshape(w.shape)


def make_config(row):
    family, heads, kv, dim, E, F, tied, _, _, _, n_tokens, rope = row
    kind = {
        "llama": tf.LlamaConfig, "qwen2": tf.Qwen2Config, "qwen3": tf.Qwen3Config
    }[family]
    rope = {"rope_type": "default"} if rope is None else rope
    return kind(
        vocab_size=N_VOCAB, hidden_size=E, intermediate_size=F,
        num_hidden_layers=N_LAYERS, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=dim, tie_word_embeddings=tied,
        max_position_embeddings=2048, rms_norm_eps=1e-5,
        rope_parameters={**rope, "rope_theta": 50000.0},
        attn_implementation="eager",
    )


# transformers' name, the file's, and which type the matrix takes.
LAYER = [
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
]


def to_neighbours(n_heads, w):
    """Row i of each half of a head becomes row 2i (2i + 1)."""
    halves = w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(w.shape)


def to_halves(n_heads, w):
    pairs = w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(w.shape)


def draw(rng, name, shape):
    if "norm" in name:
        return 1 + 0.2 * rng.standard_normal(shape)
    if name.endswith("bias"):
        return 0.5 * rng.standard_normal(shape)
    return 1.5 * rng.standard_normal(shape) / np.sqrt(shape[-1])


def put(rng, writer, state, ours, theirs, kind, heads_to_turn):
    """Draws one tensor, writes it and gives transformers its value."""
    w = draw(rng, theirs, tuple(state[theirs].shape))
    if w.ndim == 1:
        value = w.astype(np.float32)
        writer.add_tensor(ours, value)
    else:
        q, data, value = quantise(rng, kind, w)
        writer.add_tensor(ours, data, raw_dtype=q)
        if heads_to_turn:
            value = to_halves(heads_to_turn, value)
    state[theirs].copy_(torch.from_numpy(value.astype(np.float64)))


def put_all(rng, writer, model, row):
    family, heads, kv, _, _, _, tied, kinds, embd, head, _, rope = row
    state = model.state_dict()
    put(rng, writer, state, "token_embd.weight", "model.embed_tokens.weight",
        embd, 0)
    put(rng, writer, state, "output_norm.weight", "model.norm.weight", None, 0)
    if not tied:
        put(rng, writer, state, "output.weight", "lm_head.weight", head, 0)
    if rope and rope["rope_type"] == "llama3":
        dim = row[3]
        plain = 50000.0 ** -(np.arange(0, dim, 2) / dim)
        scaled = model.model.rotary_emb.inv_freq.double().numpy()
        writer.add_tensor("rope_freqs.weight",
                          (plain / scaled).astype(np.float32))
    for i in range(N_LAYERS):
        for k, (theirs, ours) in enumerate(LAYER):
            theirs = f"model.layers.{i}.{theirs}"
            if theirs not in state:
                continue
            turn = 0
            if family == "llama" and ours in ("attn_q.weight", "attn_k.weight"):
                turn = heads if ours == "attn_q.weight" else kv
            put(rng, writer, state, f"blk.{i}.{ours}", theirs,
                kinds[(k + i) % len(kinds)], turn)


def make(out, name, row):
    family, heads, kv, dim, E, F, tied, _, _, _, n_tokens, rope = row
    rng = np.random.default_rng(sum(name.encode()))
    model = tf.AutoModelForCausalLM.from_config(make_config(row)).double()
    w = gguf.GGUFWriter(os.path.join(out, name + ".gguf"), family)
    w.add_name(name)
    w.add_block_count(N_LAYERS)
    w.add_context_length(2048)
    w.add_embedding_length(E)
    w.add_feed_forward_length(F)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(50000.0)
    if rope and rope["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    with torch.no_grad():
        put_all(rng, w, model, row)
        tokens = rng.integers(0, N_VOCAB, n_tokens)
        logits = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    positions = np.unique(np.linspace(0, n_tokens - 1, 50).astype(int))
    golden_file.write(
        os.path.join(out, name + ".golden"),
        {
            "tokens": ("i32", tokens),
            "positions": ("i32", positions),
            "logits": ("f32", logits[positions]),
        },
    )
    print(name, os.path.getsize(os.path.join(out, name + ".gguf")), flush=True)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, row in MODELS.items():
        make(sys.argv[1], name, row)
