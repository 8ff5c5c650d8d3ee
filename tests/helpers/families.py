"""Tiny random models of many architectures, built from their configurations, with the expected results of capture.

Options are added to `COMMON`. A configuration with other names (T5's `d_model`) replaces `COMMON`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEADS = 4
WIDTH = 32
POSITIONS = 48
VOCABULARY = 62
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
IMAGE = 12
PATCH = 4
VISION: dict[str, Any] = {
    "image_size": IMAGE,
    "patch_size": PATCH,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
}
Layers = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """One architecture: its options, its stacks with their layer numbers, and its particularities."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stacks: Mapping[str, Layers] = field(default_factory=lambda: {"encoder": (0, 1)})
    heads: int = HEADS
    route: str = "registry"
    common: Mapping[str, Any] = field(default_factory=lambda: COMMON)
    gated: bool = False
    verified: bool = True
    pad_id: int = 0
    padding: str = "both"
    """the sides on which it supports padding; images have none"""
    note: str = ""


ENCODER: dict[str, Layers] = {"encoder": (0, 1)}
DECODER: dict[str, Layers] = {"decoder": (0, 1)}
BOTH: dict[str, Layers] = {"encoder": (0, 1), "decoder": (0, 1), "cross": (0, 1)}


def encoder(kind: str, **options: Any) -> Family:
    return _make_family(kind, ENCODER, options)


def decoder(kind: str, **options: Any) -> Family:
    return _make_family(kind, DECODER, options)


def _make_family(kind: str, stacks: Mapping[str, Layers], options: dict[str, Any]) -> Family:
    fields = {name: options.pop(name) for name in tuple(options) if name in Family.__dataclass_fields__}
    return Family(kind, **{"stacks": stacks, **fields, "options": {**options, **fields.get("options", {})}})


def vision(kind: str, **options: Any) -> Family:
    """Return an architecture for images of 3 × 3 patches."""
    return _make_family(kind, ENCODER, {"common": VISION, "padding": "none", **options})


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
T5 = {**TOKENS, "d_model": WIDTH, "d_ff": 40, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS,
      "decoder_start_token_id": 0}  # fmt: skip
BART = {**TOKENS, "d_model": WIDTH, "max_position_embeddings": POSITIONS, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40, "decoder_start_token_id": 3, "forced_eos_token_id": None}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_expand": 2,
         "mamba_d_conv": 4, "mamba_chunk_size": 8}  # fmt: skip
MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
       "num_key_value_heads": HEADS, "first_k_dense_replace": 2}  # fmt: skip


def bart(kind: str, **options: Any) -> Family:
    return _make_family(kind, BOTH, {"common": BART, **options})


def t5(kind: str, **options: Any) -> Family:
    return _make_family(kind, BOTH, {"common": T5, **options})


FAMILIES: dict[str, Family] = {
    # encoders
    "bert": encoder("bert"),
    "roberta": encoder("roberta", pad_id=1, options={"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": encoder("xlm-roberta", pad_id=1, options={"pad_token_id": 1, "type_vocab_size": 1}),
    "camembert": encoder("camembert", pad_id=1, options={"pad_token_id": 1}),
    "distilbert": encoder("distilbert", dim=WIDTH, hidden_dim=40, n_layers=2, n_heads=HEADS),
    "albert": encoder(
        "albert", num_hidden_layers=3, embedding_size=16, stacks={"encoder": (0, 1, 2)}, note="one module, all layers"
    ),
    "electra": encoder("electra", embedding_size=16),
    "ernie": encoder("ernie"),
    "modernbert": encoder(
        "modernbert",
        local_attention=4,
        global_attn_every_n_layers=2,
        num_hidden_layers=3,
        stacks={"encoder": (0, 1, 2)},
        note="sliding window in one layer",
    ),
    "nomic_bert": encoder("nomic_bert"),
    "eurobert": encoder("eurobert"),
    "esm": encoder("esm", pad_id=1, options={"pad_token_id": 1, "mask_token_id": 4}),
    "data2vec-text": encoder("data2vec-text", pad_id=1, options={"pad_token_id": 1}),
    "mobilebert": encoder("mobilebert", embedding_size=16, intra_bottleneck_size=32, true_hidden_size=32),
    "mpnet": encoder("mpnet", route="products", pad_id=1, options={"pad_token_id": 1}),
    "deberta": encoder("deberta", route="products", relative_attention=True, pos_att_type="c2p|p2c"),
    "deberta-v2": encoder("deberta-v2", route="products", relative_attention=True, pos_att_type="c2p|p2c"),
    "xlnet": encoder(
        "xlnet",
        route="products",
        common={"vocab_size": VOCABULARY, "pad_token_id": 0},
        d_model=WIDTH,
        n_layer=2,
        n_head=HEADS,
        d_inner=40,
        verified=False,
        note="its projection is no module",
    ),
    "xlm": encoder("xlm", route="products"),
    "flaubert": encoder("flaubert", route="products"),
    "rembert": encoder("rembert", route="products", input_embedding_size=16, output_embedding_size=16),
    "roformer": encoder("roformer", route="products", embedding_size=WIDTH),
    "megatron-bert": encoder("megatron-bert", route="products"),
    "ibert": encoder("ibert", route="products", pad_id=1, options={"pad_token_id": 1}),
    "squeezebert": encoder(
        "squeezebert",
        route="products",
        embedding_size=WIDTH,
        q_groups=1,
        k_groups=1,
        v_groups=1,
        post_attention_groups=1,
        intermediate_groups=1,
        output_groups=1,
        note="channels first",
    ),
    "luke": encoder("luke", route="products", pad_id=1, options={"pad_token_id": 1, "entity_vocab_size": 4}),
    "big_bird": encoder("big_bird", route="products", attention_type="original_full"),
    "convbert": encoder("convbert", route="products", heads=2, note="half of its heads are convolutions"),
    # decoders
    "gpt2": decoder("gpt2"),
    "llama": decoder("llama", **GROUPED, note="grouped heads"),
    "mistral": decoder("mistral", **GROUPED, sliding_window=4, note="sliding window"),
    "mixtral": decoder("mixtral", **GROUPED, **EXPERTS),
    "qwen2": decoder("qwen2", **GROUPED),
    "qwen3": decoder("qwen3", **GROUPED),
    "gemma2": decoder("gemma2", **GROUPED, sliding_window=4, attn_logit_softcapping=5.0, note="soft caps"),
    "gemma3": decoder("gemma3_text", **GROUPED, sliding_window=4, num_hidden_layers=3, stacks={"decoder": (0, 1, 2)}),
    "gpt_neox": decoder("gpt_neox", note="parallel blocks"),
    "gpt_bigcode": decoder("gpt_bigcode", multi_query=True, note="multi-query"),
    "gpt_oss": decoder("gpt_oss", **GROUPED, **EXPERTS, sliding_window=4, note="attention sinks"),
    "phi": decoder("phi", num_key_value_heads=HEADS, note="parallel blocks"),
    "phi3": decoder("phi3", num_key_value_heads=2),
    "cohere": decoder("cohere", num_key_value_heads=2, note="parallel blocks"),
    "olmo2": decoder("olmo2", num_key_value_heads=2),
    "granite": decoder("granite", num_key_value_heads=2),
    "stablelm": decoder("stablelm", num_key_value_heads=2),
    "starcoder2": decoder("starcoder2", num_key_value_heads=2),
    "opt": decoder("opt", ffn_dim=40, word_embed_proj_dim=WIDTH),
    "biogpt": decoder("biogpt"),
    "ctrl": decoder("ctrl", dff=40),
    "deepseek_v3": decoder("deepseek_v3", **MLA, note="MLA: values of another width than keys"),
    "bitnet": decoder("bitnet", num_key_value_heads=2, gated=True, note="a norm before the projection"),
    "afmoe": decoder("afmoe", **GROUPED, **EXPERTS, gated=True, note="gated heads"),
    "bloom": decoder("bloom", route="products"),
    "gptj": decoder("gptj", route="products", rotary_dim=4),
    "codegen": decoder("codegen", route="products", rotary_dim=4),
    "gpt_neo": decoder(
        "gpt_neo", route="products", num_layers=2, attention_types=[[["global", "local"], 1]], window_size=4
    ),
    "falcon": decoder("falcon", route="products", note="multi-query"),
    "mpt": decoder("mpt", route="products", d_model=WIDTH, n_heads=HEADS, n_layers=2),
    "xglm": decoder("xglm", route="products", d_model=WIDTH, ffn_dim=40, num_layers=2, attention_heads=HEADS),
    "openai-gpt": decoder("openai-gpt", route="products", padding="right", note="knows no padding mask on the left"),
    "gpt_neox_japanese": decoder("gpt_neox_japanese", route="products"),
    # hybrids: layers without attention between those that have it
    "jamba": decoder(
        "jamba",
        **GROUPED,
        **EXPERTS,
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
        mamba_dt_rank=4,
        stacks={"decoder": (1, 3)},
        note="hybrid",
    ),
    "bamba": decoder(
        "bamba",
        **GROUPED,
        **MAMBA,
        num_hidden_layers=3,
        attn_layer_indices=[1],
        stacks={"decoder": (1,)},
        note="hybrid",
    ),
    "lfm2": decoder(
        "lfm2",
        **GROUPED,
        num_hidden_layers=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        stacks={"decoder": (1, 3)},
        note="hybrid",
    ),
    "qwen3_next": decoder(
        "qwen3_next",
        **GROUPED,
        **EXPERTS,
        num_hidden_layers=4,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        stacks={"decoder": (1, 3)},
        gated=True,
        note="hybrid, gated heads",
    ),
    "recurrent_gemma": decoder(
        "recurrent_gemma",
        num_key_value_heads=1,
        num_hidden_layers=3,
        lru_width=WIDTH,
        attention_window_size=8,
        block_types=["recurrent", "recurrent", "attention"],
        stacks={"decoder": (2,)},
        note="hybrid",
    ),
    "falcon_h1": decoder(
        "falcon_h1", **GROUPED, **MAMBA, mamba_d_ssm=64, note="attention and state space side by side"
    ),
    # encoder–decoders
    "t5": t5("t5"),
    "umt5": t5("umt5"),
    "switch_transformers": t5(
        "switch_transformers", num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
    ),
    "bart": bart("bart"),
    "mbart": bart("mbart"),
    "marian": bart("marian"),
    "pegasus": bart("pegasus"),
    "blenderbot": bart("blenderbot"),
    "m2m_100": bart("m2m_100"),
    "plbart": bart("plbart"),
    "mvp": bart("mvp", route="products"),
    "fsmt": bart("fsmt", route="products", src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, langs=["en", "de"]),
    # vision transformers: patches of images are their tokens
    "vit": vision("vit", note="images"),
    "deit": vision("deit", note="images; a token of distillation"),
    "beit": vision("beit", use_relative_position_bias=True, note="images; relative positions"),
    "dinov2": vision("dinov2", note="images"),
    "dinov2_with_registers": vision("dinov2_with_registers", note="images; four register tokens"),
    "dinov3_vit": vision("dinov3_vit", num_register_tokens=4, note="images; four register tokens"),
    "vit_mae": vision("vit_mae", note="images; its masking is turned off"),
    "vit_msn": vision("vit_msn", note="images"),
    "data2vec-vision": vision("data2vec-vision", route="products", note="images"),
    "ijepa": vision("ijepa", note="images; no special token"),
    "clip_vision_model": vision("clip_vision_model", note="images"),
    "chinese_clip_vision_model": vision("chinese_clip_vision_model", note="images"),
    "siglip_vision_model": vision("siglip_vision_model", note="images; no special token"),
    "aimv2_vision_model": vision("aimv2_vision_model", note="images; no special token"),
    "mlcd": vision("mlcd", note="images"),
    "internvl_vision": vision("internvl_vision", note="images"),
    "dpt": vision("dpt", note="images; what its head does is not watched"),
    "yolos": vision("yolos", image_size=[IMAGE, IMAGE], num_detection_tokens=3, note="images; detection tokens last"),
}
"""Architectures whose heads can be captured."""

UNSEEN: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({**COMMON, "state_size": 4, "expand": 2, "time_step_rank": 4}, "no attention layers"),
    "rwkv": ({**COMMON, "attention_hidden_size": WIDTH}, "no attention layers"),
    "fnet": (COMMON, "no attention layers"),
    "canine": (
        {
            **COMMON,
            "downsampling_rate": 4,
            "upsampling_kernel_size": 4,
            "num_hash_functions": 2,
            "num_hash_buckets": 16,
        },
        "2 of 4 attention layers of the model type 'canine' relate no tokens",
    ),
    "diffllama": ({**COMMON, **GROUPED}, "computes attention more than once before its output projection"),
    "longformer": ({**COMMON, "attention_window": 4}, "nothing was captured"),
    "mra": (COMMON, "nothing was captured"),
}
"""Architectures that are refused, and a part of the error message."""

SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
UNSEEN_VISION: dict[str, tuple[dict[str, Any], str]] = {
    "swin": (SWIN, "attends in windows"),
    "swinv2": (SWIN, "attends in windows"),
    "pvt": ({"image_size": 32}, "its maps shrink"),
    "segformer": ({"image_size": 32}, "its maps shrink"),
    "hiera": ({"image_size": [32, 32], "embed_dim": 16}, "its maps shrink"),
    "levit": ({"image_size": 64}, "its maps shrink"),
    "mobilevit": ({"image_size": 64}, "attends in windows"),
    "poolformer": ({"image_size": 64}, "no attention layers"),
    "resnet": ({"image_size": 64}, "no attention layers"),
    "vivit": (VISION, "does not run on an image"),
}
"""The same for models that read images."""
