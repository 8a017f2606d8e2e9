"""Models before Llama, and others with LayerNorm: one row each, under the field names of the class.

Shapes: the released configs; for unreleased models the papers: table 2.1 of "Language Models are Few-Shot
Learners" (arXiv:2005.14165), table 1 of "OPT" (arXiv:2205.01068), table 1 of "Nemotron-4 340B"
(arXiv:2406.11704). Totals: the checkpoints on the pages of the ids on huggingface.co, or the sum of the
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .preset import Preset


class _Class(NamedTuple):
    """A class, its type, the fields of its rows, and the fields that all rows share."""

    architecture: str
    kind: str
    columns: tuple[str, ...]
    every: Mapping[str, object] = {}


_GPT = ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions")
_FP16, _BF16 = {"torch_dtype": "float16"}, {"torch_dtype": "bfloat16"}
_GPT2 = _Class("GPT2LMHeadModel", "gpt2", _GPT, _FP16)
_GPTJ = _Class("GPTJForCausalLM", "gptj", _GPT, {**_FP16, "rotary_dim": 64})
_BIGCODE = _Class("GPTBigCodeForCausalLM", "gpt_bigcode", _GPT, _BF16)
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
_OPT = _Class("OPTForCausalLM", "opt", (*_SIZES, "ffn_dim"), _FP16)
_NEOX = _Class("GPTNeoXForCausalLM", "gpt_neox", (*_SIZES, "intermediate_size"), _FP16)
_BLOOM = _Class("BloomForCausalLM", "bloom", ("n_layer", "hidden_size", "n_head", "vocab_size"), _BF16)
_FALCON = _Class("FalconForCausalLM", "falcon", (*_SIZES, "num_kv_heads"), _BF16)
_PHI = _Class("PhiForCausalLM", "phi", (*_SIZES, "intermediate_size"), _FP16)
_GROUPED = (*_SIZES, "intermediate_size", "num_key_value_heads")
_STARCODER2 = _Class("Starcoder2ForCausalLM", "starcoder2", _GROUPED, {**_BF16, "sliding_window": 4096})
_STABLELM = _Class("StableLmForCausalLM", "stablelm", _GROUPED, _BF16)
_NEMOTRON = _Class("NemotronForCausalLM", "nemotron", _GROUPED, _BF16)
_MPT = _Class("MptForCausalLM", "mpt", ("n_layers", "d_model", "n_heads", "vocab_size", "max_seq_len"), _BF16)
_DBRX = _Class(
    "DbrxForCausalLM",
    "dbrx",
    ("n_layers", "d_model", "n_heads", "vocab_size", "max_seq_len"),
    {
        **_BF16,
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 8, "rope_theta": 500000.0},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
)
_UNTIED = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}
_AQUILA = _Class("AquilaModel", "aquila", _GROUPED, {**_BF16, **_UNTIED})
_LONG = {"rope_theta": 1e6, "bias": False, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_INTERNLM2 = _Class("InternLM2ForCausalLM", "internlm2", _GROUPED, {**_BF16, **_LONG})
_WIDE = (*_SIZES, "intermediate_size")
_BAICHUAN = _Class("BaichuanForCausalLM", "baichuan", _WIDE, {**_BF16, "rms_norm_eps": 1e-6})
_LLAMA = _Class("LlamaForCausalLM", "llama", _GROUPED, {**_BF16, **_UNTIED})
_NEW: Mapping[str, object] = {"new_decoder_architecture": True}
_RW: Mapping[str, object] = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}

# name, id if it is on the hub, total, columns, other fields, aliases
_ROWS: tuple[tuple[_Class, tuple[tuple[Any, ...], ...]], ...] = (
    (
        _GPT2,
        (
            ("GPT-2", "openai-community/gpt2", 124_439_808, (12, 768, 12, 50257, 1024), {}, ("gpt2-small",)),
            ("GPT-2-medium", "openai-community/gpt2-medium", 354_823_168, (24, 1024, 16, 50257, 1024)),
            ("GPT-2-large", "openai-community/gpt2-large", 774_030_080, (36, 1280, 20, 50257, 1024)),
            ("GPT-2-XL", "openai-community/gpt2-xl", 1_557_611_200, (48, 1600, 25, 50257, 1024)),
            # Not released: 175 billion parameters.
            ("GPT-3-175B", "", 174_604_259_328, (96, 12288, 96, 50257, 2048), {}, ("gpt3", "gpt3_175b")),
            # From the benchmarks of FasterTransformer: docs/gpt_guide.md, "Performance".
            ("FT-GPT-350M", "", 355_788_800, (24, 1024, 16, 51200, 1024)),
            ("FT-GPT-1.3B", "", 1_315_557_376, (24, 2048, 32, 51200, 1024)),
            ("FT-GPT-6.7B", "", 6_658_072_576, (32, 4096, 32, 51200, 1024)),
            ("FT-GPT-89B", "", 87_622_508_544, (48, 12288, 96, 51200, 1024)),
        ),
    ),
    (
        _GPTJ,
        (("GPT-J-6B", "EleutherAI/gpt-j-6b", 6_050_882_784, (28, 4096, 16, 50400, 2048)),),
    ),
    (
        _BIGCODE,
        (
            (
                "StarCoder-15.5B",
                "bigcode/starcoder",
                15_517_456_384,
                (40, 6144, 48, 49152, 8192),
                {},
                ("starcoderbase",),
            ),
            ("StarCoderBase-1B", "bigcode/starcoderbase-1b", 1_137_207_296, (24, 2048, 16, 49152, 8192)),
        ),
    ),
    (
        _OPT,
        (
            ("OPT-125M", "facebook/opt-125m", 125_239_296, (12, 768, 12, 50272, 2048, 3072)),
            ("OPT-1.3B", "facebook/opt-1.3b", 1_315_758_080, (24, 2048, 32, 50272, 2048, 8192)),
            ("OPT-2.7B", "facebook/opt-2.7b", 2_651_596_800, (32, 2560, 32, 50272, 2048, 10240)),
            ("OPT-6.7B", "facebook/opt-6.7b", 6_658_473_984, (32, 4096, 32, 50272, 2048, 16384)),
            ("OPT-13B", "facebook/opt-13b", 12_853_473_280, (40, 5120, 40, 50272, 2048, 20480)),
            ("OPT-30B", "facebook/opt-30b", 29_974_540_288, (48, 7168, 56, 50272, 2048, 28672)),
            ("OPT-66B", "facebook/opt-66b", 65_719_701_504, (64, 9216, 72, 50272, 2048, 36864)),
            ("OPT-175B", "", 174_604_468_224, (96, 12288, 96, 50272, 2048, 49152)),
        ),
    ),
    (
        _NEOX,
        (
            (
                "GPT-NeoX-20B",
                "EleutherAI/gpt-neox-20b",
                20_554_567_680,
                (44, 6144, 64, 50432, 2048, 24576),
                {"hidden_act": "gelu_fast"},
            ),
            ("Pythia-70M", "EleutherAI/pythia-70m", 70_426_624, (6, 512, 8, 50304, 2048, 2048)),
            ("Pythia-160M", "EleutherAI/pythia-160m", 162_322_944, (12, 768, 12, 50304, 2048, 3072)),
            ("Pythia-410M", "EleutherAI/pythia-410m", 405_334_016, (24, 1024, 16, 50304, 2048, 4096)),
            ("Pythia-1B", "EleutherAI/pythia-1b", 1_011_781_632, (16, 2048, 8, 50304, 2048, 8192)),
            ("Pythia-1.4B", "EleutherAI/pythia-1.4b", 1_414_647_808, (24, 2048, 16, 50304, 2048, 8192)),
            ("Pythia-2.8B", "EleutherAI/pythia-2.8b", 2_775_208_960, (32, 2560, 32, 50304, 2048, 10240)),
            ("Pythia-6.9B", "EleutherAI/pythia-6.9b", 6_857_302_016, (32, 4096, 32, 50432, 2048, 16384)),
            ("Pythia-12B", "EleutherAI/pythia-12b", 11_846_072_320, (36, 5120, 40, 50688, 2048, 20480)),
        ),
    ),
    (
        _BLOOM,
        (
            ("Bloom-560M", "bigscience/bloom-560m", 559_214_592, (24, 1024, 16, 250880)),
            ("Bloom-1B1", "bigscience/bloom-1b1", 1_065_314_304, (24, 1536, 16, 250880)),
            ("Bloom-1B7", "bigscience/bloom-1b7", 1_722_408_960, (24, 2048, 16, 250880)),
            ("Bloom-3B", "bigscience/bloom-3b", 3_002_557_440, (30, 2560, 32, 250880)),
            ("Bloom-7B1", "bigscience/bloom-7b1", 7_069_016_064, (30, 4096, 32, 250880)),
            ("Bloom-176B", "bigscience/bloom", 176_247_271_424, (70, 14336, 112, 250880)),
        ),
    ),
    (
        _FALCON,
        (
            ("Falcon-RW-1B", "tiiuae/falcon-rw-1b", 1_311_625_216, (24, 2048, 32, 50304, 2048, 32), _RW),
            ("Falcon-7B", "tiiuae/falcon-7b", 6_921_720_704, (32, 4544, 71, 65024, 2048, 71)),
            ("Falcon-40B", "tiiuae/falcon-40b", 41_303_293_952, (60, 8192, 128, 65024, 2048, 8), _NEW),
            (
                "Falcon-180B",
                "tiiuae/falcon-180B",
                179_522_565_120,
                (80, 14848, 232, 65024, 2048, 8),
                {**_NEW, "tie_word_embeddings": False},
            ),
        ),
    ),
    (
        _PHI,
        (
            (
                "Phi-1",
                "microsoft/phi-1",
                1_418_270_720,
                (24, 2048, 32, 51200, 2048, 8192),
                {},
                ("phi-1.5", "phi-1_5"),
            ),
            (
                "Phi-2-2.7B",
                "microsoft/phi-2",
                2_779_683_840,
                (32, 2560, 32, 51200, 2048, 10240),
                {"partial_rotary_factor": 0.4},
            ),
        ),
    ),
    (
        _STARCODER2,
        (
            (
                "StarCoder2-3B",
                "bigcode/starcoder2-3b",
                3_030_371_328,
                (30, 3072, 24, 49152, 16384, 12288, 2),
                {"rope_theta": 999999.4420358813},
            ),
            (
                "StarCoder2-7B",
                "bigcode/starcoder2-7b",
                7_173_923_840,
                (32, 4608, 36, 49152, 16384, 18432, 4),
                {"rope_theta": 1e6},
            ),
            (
                "StarCoder2-15B",
                "bigcode/starcoder2-15b",
                15_957_889_024,
                (40, 6144, 48, 49152, 16384, 24576, 4),
                {"rope_theta": 1e5, "tie_word_embeddings": False},
            ),
        ),
    ),
    (
        _STABLELM,
        (
            (
                "StableLM-3B",
                "stabilityai/stablelm-3b-4e1t",
                2_795_443_200,
                (32, 2560, 32, 50304, 4096, 6912, 32),
                {},
                ("stablelm-zephyr-3b",),
            ),
            (
                "StableLM-2-1.6B",
                "stabilityai/stablelm-2-1_6b",
                1_644_515_328,
                (24, 2048, 32, 100352, 4096, 5632, 32),
                {"use_qkv_bias": True},
            ),
        ),
    ),
    (
        _NEMOTRON,
        (
            (
                "Nemotron-4-340B",
                "nvidia/Nemotron-4-340B-Base",
                341_029_195_776,
                (96, 18432, 96, 256000, 4096, 73728, 8),
            ),
        ),
    ),
    (
        _MPT,
        (
            ("MPT-7B", "mosaicml/mpt-7b", 6_649_286_656, (32, 4096, 32, 50432, 2048)),
            ("MPT-30B", "mosaicml/mpt-30b", 29_957_200_896, (48, 7168, 64, 50432, 8192)),
        ),
    ),
    (
        _DBRX,
        (
            (
                "DBRX-132B",
                "databricks/dbrx-base",
                131_596_523_520,
                (40, 6144, 48, 100352, 32768),
                {},
                ("dbrx-instruct",),
            ),
        ),
    ),
    (
        _AQUILA,
        (("Aquila-7B", "BAAI/Aquila-7B", 7_295_537_152, (32, 4096, 32, 100008, 2048, 11008, 32)),),
    ),
    (
        _INTERNLM2,
        (
            (
                "InternLM2-7B",
                "internlm/internlm2-7b",
                7_737_708_544,
                (32, 4096, 32, 92544, 32768, 14336, 8),
                {},
                ("internlm2-chat-7b",),
            ),
            (
                "InternLM2-20B",
                "internlm/internlm2-20b",
                19_861_149_696,
                (48, 6144, 48, 92544, 32768, 16384, 8),
                {},
                ("internlm2-chat-20b",),
            ),
        ),
    ),
    (
        _BAICHUAN,
        (
            (
                "Baichuan2-7B",
                "baichuan-inc/Baichuan2-7B-Base",
                7_505_973_248,
                (32, 4096, 32, 125696, 4096, 11008),
                {},
                ("Baichuan2-7B-Chat",),
            ),
            (
                "Baichuan2-13B",
                "baichuan-inc/Baichuan2-13B-Base",
                13_896_668_160,
                (40, 5120, 40, 125696, 4096, 13696),
                {},
                ("Baichuan2-13B-Chat",),
            ),
        ),
    ),
    (
        _LLAMA,
        (
            # Its layers have 4, 2 or 1 key/value heads; vLLM stores 4 in all (its decilm.py).
            ("DeciLM-7B-4KV", "", 7_107_514_368, (32, 4096, 32, 32000, 8192, 14336, 4)),
        ),
    ),
)


def presets() -> Iterator[Preset]:
    """Every one of them, by class and size."""
    for of, rows in _ROWS:
        for name, hf_id, parameters, columns, *more in rows:
            differs, aliases = more[0] if more else {}, more[1] if more[1:] else ()
            named = dict(zip(of.columns, columns, strict=True))
            base = {"architectures": [of.architecture], "model_type": of.kind}
            yield Preset(name, hf_id, {**base, **of.every, **named, **differs}, parameters, tuple(aliases))
