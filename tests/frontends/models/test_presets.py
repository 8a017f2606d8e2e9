"""A preset's facts add up to the total its publisher states, and every spelling of its name finds it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

import llmir
from llmir.backends.step.facts import weights
from llmir.base.readers import load_yaml
from llmir.frontends.config.reader import read
from llmir.frontends.models.presets import FOLDER, PRESETS, Preset, find, names

# Totals as the checkpoints on huggingface.co state them.
PUBLISHED = {
    "BitNet-b1.58-2B-4T-bf16": 2_412_820_480,
    "Mamba-130M": 129_135_360,
    "Mamba-370M": 371_516_416,
    "Mamba-790M": 793_204_224,
    "Mamba-1.4B": 1_372_178_432,
    "Mamba-2.8B": 2_768_345_600,
    "Mamba-Codestral-7B": 7_285_403_648,
    "Nemotron-Nano-9B-v2": 8_888_227_328,
    "LFM2-350M": 354_483_968,
    "LFM2-700M": 742_489_344,
    "LFM2-1.2B": 1_170_340_608,
    "Qwen3-Next-80B-A3B": 79_674_391_296,
    "Qwen3.5-397B-A17B": 396_346_350_336,
    "Jamba-v0.1": 51_570_323_328,
    "Llama-7B": 6_738_415_616,
    "Llama-13B": 13_015_864_320,
    "Llama-30B": 32_528_943_616,
    "Llama-65B": 65_285_660_672,
    "GLM-4-9B-Chat-HF": 9_399_951_360,
    "GLM-4-9B-0414": 9_400_279_040,
    "ERNIE-4.5-0.3B-PT": 360_748_032,
    "cwm": 32_581_097_472,
    "Gemma-2B": 2_506_172_416,
    "Gemma-7B": 8_537_680_896,
    "Gemma-2-2B": 2_614_341_888,
    "Gemma-2-9B": 9_241_705_984,
    "Gemma-2-27B": 27_227_128_320,
    "Gemma-3-270M": 268_098_176,
    "Gemma-3-1B": 999_885_952,
    # Less the vision tower with its norm, and the projection.
    "Gemma-3-4B": 4_300_079_472 - 416_867_184 - 1152 * 2560,
    "Gemma-3-12B": 12_187_325_040 - 416_867_184 - 1152 * 3840,
    "Gemma-3-27B": 27_432_406_640 - 416_867_184 - 1152 * 5376,
    # Of checkpoints, less towers and less keys and values of layers that read another's.
    "Gemma-3n-E2B": 5_439_438_272 - 983_281_504 - 10 * (2 * 2048 * 512 + 256),
    "Gemma-3n-E4B": 7_849_978_192 - 983_281_504 - 15 * (2 * 2048 * 512 + 256),
    "Gemma-4-31B": 30_697_345_280,  # of transformers' class; the publisher says 30.7B
    "Command-R-35B": 34_980_831_232,
    "Command-R-08-2024": 32_296_476_672,
    "Command-R-Plus": 103_810_674_688,
    "Aya-Expanse-8B": 8_028_033_024,
    "Command-R-7B": 8_028_033_024,
    "Command-A": 111_057_580_032,
    "OLMo-2-1B": 1_484_916_736,
    "OLMo-2-7B": 7_298_617_344,
    "OLMo-2-13B": 13_716_198_400,
    "OLMo-2-32B": 32_234_279_936,
    "OLMo-3-7B": 7_298_011_136,
    "OLMo-3-32B": 32_233_522_176,
    "SmolLM3-3B": 3_075_098_624,
    "EXAONE-4.0-1.2B": 1_279_391_488,
    "granite-3.1-2b-instruct": 2_533_531_648,
    "granite-3.1-8b-instruct": 8_170_848_256,
    "granite-3.3-8b-instruct": 8_170_864_640,
    "Seed-OSS-36B-Instruct": 36_151_104_512,
    "Phi-4-mini-3.8B": 3_836_021_760,
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3.3-70B": 70_553_706_496,
    "GPT-2": 124_439_808,
    "GPT-2-XL": 1_557_611_200,
    "GPT-J-6B": 6_050_882_784,
    "StarCoder-15.5B": 15_517_456_384,
    "OPT-125M": 125_239_296,
    "OPT-6.7B": 6_658_473_984,
    "OPT-30B": 29_974_540_288,
    "GPT-NeoX-20B": 20_554_567_680,
    "Pythia-12B": 11_846_072_320,
    "Bloom-7B1": 7_069_016_064,
    "Bloom-176B": 176_247_271_424,
    "Falcon-RW-1B": 1_311_625_216,
    "Falcon-7B": 6_921_720_704,
    "Falcon-40B": 41_303_293_952,
    "Falcon-180B": 179_522_565_120,
    "Phi-1": 1_418_270_720,
    "Phi-2-2.7B": 2_779_683_840,
    "StarCoder2-3B": 3_030_371_328,
    "StarCoder2-15B": 15_957_889_024,
    "StableLM-3B": 2_795_443_200,
    "MPT-7B": 6_649_286_656,
    "DBRX-132B": 131_596_523_520,
    "InternLM2-7B": 7_737_708_544,
    "InternLM2-20B": 19_861_149_696,
    "Baichuan2-7B": 7_505_973_248,
    "Baichuan2-13B": 13_896_668_160,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.2": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Ministral-8B": 8_019_808_256,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Codestral-22B-v0.1": 22_247_282_688,
    "Mistral-Small-22B": 22_247_282_688,
    "Mistral-Small-24B": 23_572_403_200,
    "Mistral-Large-123B": 122_610_069_504,
    "Mistral-Small-4-119B": 118_972_826_624,  # of transformers' class; the publisher says 119B
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Mixtral-8x22B-v0.1": 140_620_634_112,
    "Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "Phi-3-mini-3.8B-4k": 3_821_079_552,
    "Phi-3-medium-14B-4k": 13_960_238_080,
    "Phi-3.5-mini-3.8B": 3_821_079_552,
    "Phi-4-14B": 14_659_507_200,
    "DeepSeek-V2-Lite-16B": 15_706_484_224,
    # Less 58 × 256, 60 × 384 and 26 × 64 numbers by which the choice of experts is corrected.
    "DeepSeek-V3-671B": 671_026_419_200 - 14_848,
    "Kimi-K2-1026B": 1_026_408_232_448 - 23_040,
    "Kimi-K2-0905-1026B": 1_026_408_232_448 - 23_040,
    "Kimi-K2-Thinking-1026B": 1_026_408_232_448 - 23_040,
    "Moonlight-16B-A3B": 15_960_110_208 - 1_664,
    "GLM-5": 743_911_199_232,  # of transformers' class; the publisher says 744B
    "GLM-4.7-Flash": 29_943_390_976,  # of transformers' class; 31B with a layer that drafts
    "MiniMax-M3": 426_174_565_632,  # of transformers' class; 428B with a vision tower
    "DeepSeek-V4-Flash": 284_325_869_015,  # of transformers' class; the publisher says 284B
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "GLM-4.5-Air": 106_852_245_504,
    "ERNIE-4.5-21B-A3B-PT": 21_825_437_888,
    "OLMoE-1B-7B-0924": 6_919_161_856,
    "Qwen2-0.5B": 494_032_768,
    "Qwen2-1.5B": 1_543_714_304,
    "Qwen2-7B": 7_615_616_512,
    "Qwen2-72B": 72_706_203_648,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen2-57B-A14B": 57_408_658_944,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
}


@pytest.mark.parametrize(
    ("name", "positions"),
    [("Instruct", 131072), ("Instruct-0905", 262144), ("Thinking", 262144)],
)
def test_later_releases_of_kimi_k2_see_twice_as_far(name: str, positions: int) -> None:
    assert llmir.load(f"moonshotai/Kimi-K2-{name}").facts["positions"] == positions


@pytest.mark.parametrize(
    ("name", "layers", "count", "width", "hidden"),
    [("Flash", 43, 256, 2048, 4096), ("Pro", 61, 384, 3072, 7168)],
)
def test_deepseek_v4_is_as_large_as_its_fp4_tensors(
    name: str, layers: int, count: int, width: int, hidden: int
) -> None:
    """In 4 bits, a scale of 8 for 32: Flash's w1.weight has [2048, 2048] bytes and w1.scale [2048, 128]."""
    program = llmir.load(f"deepseek-ai/DeepSeek-V4-{name}")
    experts = layers * count * 3 * (width * hidden // 2 + width * hidden // 32)
    held = [w for w in weights(program) if w.block == "routed_experts"]
    assert sum(w.bytes for w in held) == experts


def test_a_model_of_four_bits_is_as_large_as_its_files() -> None:
    """594 GB on huggingface.co/moonshotai/Kimi-K2-Thinking, and not the 1 TB of Kimi-K2 in fp8."""
    program = llmir.load("moonshotai/Kimi-K2-Thinking")
    held = llmir.analyze(program, "h200", batch=1, new=1, context=0).weight_bytes
    assert round(held / 1e9) == 594


every_preset = pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)


def latent_closed_form(c: Any) -> int:
    """The weights of a DeepSeek, counted matrix by matrix."""
    hidden, heads, layers = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"]
    q, kv, rotary = c["q_lora_rank"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    keys, values = c["qk_nope_head_dim"] + rotary, c["v_head_dim"]
    to_q = hidden * q + q + q * heads * keys if q else hidden * heads * keys
    indexed = c.get("index_n_heads", 0), c.get("index_head_dim", 0)
    to_q += (q or 0) * indexed[0] * indexed[1] + hidden * sum(indexed) + 2 * indexed[1]
    to_kv = hidden * (kv + rotary) + kv + kv * heads * (keys - rotary + values)
    attention = to_q + to_kv + heads * values * hidden
    dense = 3 * hidden * c["intermediate_size"]
    experts = c["n_routed_experts"] + c["n_shared_experts"]
    sparse = 3 * hidden * c["moe_intermediate_size"] * experts + hidden * c["n_routed_experts"]
    first = c["first_k_dense_replace"]
    each = layers * (attention + 2 * hidden) + first * dense + (layers - first) * sparse
    return int(2 * c["vocab_size"] * hidden + each + hidden)


def closed_form(c: Any) -> int:
    """The weights of a Llama-like decoder, counted matrix by matrix."""
    hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head = c.get("head_dim", hidden // heads)
    qkv = (heads + 2 * kv_heads) * head
    attention = hidden * qkv + heads * head * hidden
    norms = 2 * hidden
    if "kv_lora_rank" in c:
        return latent_closed_form(c)
    if c["model_type"].startswith("qwen2"):
        attention += qkv  # the biases of q, k and v
    if c["model_type"].startswith("qwen3"):
        norms += 2 * head  # of each query head and each key head
    if experts := c.get("num_experts", c.get("num_local_experts")):
        inner = c.get("moe_intermediate_size", c["intermediate_size"])
        mlp = experts * (3 * hidden * inner + hidden)
        mlp += 3 * hidden * c["shared_expert_intermediate_size"] + hidden if "shared" in str(c) else 0
    else:
        mlp = 3 * hidden * c["intermediate_size"]
    tables = 1 if c["tie_word_embeddings"] else 2
    layers = c["num_hidden_layers"] * (attention + mlp + norms)
    return int(tables * c["vocab_size"] * hidden + layers + hidden)


# Families whose weights `closed_form` counts.
LIKE_LLAMA = {"llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}


@pytest.mark.parametrize("preset", [p for p in PRESETS.values() if p.config["model_type"] in LIKE_LLAMA])
def test_the_config_adds_up_to_the_published_total(preset: Preset) -> None:
    assert closed_form(preset.config) == preset.parameters


@pytest.mark.mostly_slow(3)
@every_preset
def test_the_program_has_the_published_total(preset: Preset) -> None:
    assert llmir.load(preset.name).parameters == preset.parameters


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_the_total_is_the_published_one(name: str, total: int) -> None:
    assert PRESETS[name].parameters == total


@pytest.mark.mostly_slow(3)
@every_preset
def test_the_name_agrees_with_the_total(preset: Preset) -> None:
    sizes = [part for part in preset.name.split("-") if part.endswith("B") and part[:-1].strip("A.x")]
    if not sizes:  # the name says none
        return
    size = sizes[0] if "OLMoE" not in preset.name else sizes[-1]  # its name has the active ones first
    # Qwen1.5-MoE-A2.7B says that alone, and Llama 4 beside how many experts there are.
    # Gemma-3n-E2B counts what is effective: without embeddings.
    active, size = size.startswith("A") or preset.name.endswith("E"), size.lstrip("AE")
    # Publishers round, and some count without the embeddings: 0.5B is 0.494, 1.7B is 1.72, 32B is 32.8.
    # 8x7B says how many experts a model of 7B would have for one: they share its attention.
    billions = math.prod(map(float, size[:-1].split("x")))
    total = llmir.load(preset.name).active_parameters if active else preset.parameters
    kinds = llmir.load(preset.name).parameters_by_kind  # OLMo-2-1B has 1.07 without embeddings and head
    total -= sum(n for kind, n in kinds.items() if kind.startswith("encode."))  # towers beside it
    without = total - kinds["embedding"] - kinds.get("lm_head", 0)
    near, bare = pytest.approx(total / 1e9, rel=0.26), pytest.approx(without / 1e9, rel=0.1)
    assert billions in (near, bare)


@every_preset
def test_every_spelling_finds_the_preset(preset: Preset) -> None:
    for spelling in filter(None, (preset.name, preset.hf_id, *preset.aliases)):
        for variant in (spelling, spelling.lower(), spelling.replace("-", "_"), f"some-org/{spelling}"):
            assert find(variant) is preset


def test_no_two_presets_share_a_spelling() -> None:
    claims = Counter(spelling for preset in PRESETS.values() for spelling in preset.spellings())
    assert [spelling for spelling, count in claims.items() if count > 1] == []


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama2-7b", "Llama-2-7B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B-v0.1"),
        ("lmsys/vicuna-7b-v1.5", "Llama-2-7B"),
        ("lmsys/vicuna-33b-v1.3", "Llama-30B"),
        ("mistral 7b", "Mistral-7B-v0.1"),
        ("microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini-3.8B-4k"),
        ("phi-4", "Phi-4-14B"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "Mistral-Nemo-12B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama3.1:70b", "Llama-3.1-70B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("Qwen3-Coder-30B-A3B", "Qwen3-Coder-30B-A3B-Instruct"),
    ],
)
def test_what_people_type_finds_what_they_mean(typed: str, name: str) -> None:
    preset = find(typed)
    assert preset is not None and preset.name == name


def test_what_is_not_bundled_is_not_found() -> None:
    for name in ("", "llama", "Qwen2-57B", "Llama-3.1-8B-Instruct-FP8", "---"):
        assert find(name) is None


def test_the_index_lists_each_file_once() -> None:
    """The index is read without a YAML parser, and a parser gives the same names."""
    index = load_yaml((FOLDER / "index.yaml").read_bytes())
    assert {p.name: [p.hf_id, *p.aliases] for p in PRESETS.values()} == index
    assert names() == list(index)
    files = sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem != "index")
    assert files == sorted(name.lower() for name in index)


def test_each_file_states_the_sources_of_its_numbers() -> None:
    for name in names():
        fields = load_yaml((FOLDER / f"{name.lower()}.yaml").read_bytes())
        assert list(fields) == ["parameters", "sources", "config"], name
        assert list(fields["sources"]) == ["config", "parameters"], name
        assert all(fields["sources"].values()), name


def test_a_model_reads_its_file_alone() -> None:
    """In a process of its own, since each file is read once."""
    code = f"""
import sys
opened = set()
sys.addaudithook(lambda event, of: opened.add(str(of[0])) if event == "open" else None)
from llmir.frontends.config.reader import read
read("meta-llama/Llama-3.1-8B-Instruct")
print(*sorted(name.rpartition("/")[2] for name in opened if name.startswith({str(FOLDER)!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    data = [name for name in done.stdout.split() if name.endswith(".yaml")]
    assert data == ["index.yaml", "llama-3.1-8b.yaml"]


@pytest.mark.parametrize("preset", [p for p in PRESETS.values() if p.config["model_type"] in LIKE_LLAMA])
def test_heads_divide_and_types_are_those_of_the_release(preset: Preset) -> None:
    config = read(preset.name)
    heads, kv_heads = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    assert heads % kv_heads == 0
    assert config.dtype() == (
        "fp16" if config.integer("max_position_embeddings") < 8192 and "Llama" in preset.name else "bf16"
    )
    assert config.integer("max_position_embeddings") >= 2048
    assert config.number("rope_theta") >= 10000


@pytest.mark.mostly_slow(3)
@every_preset
def test_a_preset_is_read_without_a_note(preset: Preset) -> None:
    assert llmir.load(preset.config).notes == ()
