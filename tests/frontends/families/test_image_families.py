"""Models of images: what they compute is what transformers and diffusers compute with the same weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import InputError, PassError, UnsupportedError, VerifyError
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from tests.flat import records

from .image_cases import DIT, FILE, IMAGE, LABELS, LLAVA, NEXT, PROMPT, SIDE, TILE, TIMESTEPS, cut, pixels
from .test_transformers import Checkpoint
from .transformers_cases import parameter

TRUTH = json.loads(FILE.read_text("utf-8"))
PASSES = pytest.mark.parametrize(
    "pipeline", ["", llmir.pipeline_of(), "unroll", "fuse-attention,fuse,shard{tp=2}"]
)


class Weights:
    """Those of a program's checkpoint; convolutions have outputs first, and DiT's positions are fixed."""

    def __init__(self, *programs: Program) -> None:
        self.each = [Checkpoint(program) for program in programs]

    def __call__(self, name: str, type: Tensor) -> np.ndarray[Any, Any]:
        shape = tuple(int(str(n)) for n in type.shape)
        if name.endswith("positions.table"):
            return np.array(TRUTH["dit_positions"])
        if len(shape) == 4 and ("patch_embedding" in name or name.startswith("pos_embed")):
            return np.moveaxis(parameter(name, (shape[-1], *shape[:-1])), 0, -1)
        own = next((c for c in self.each if _known(c, name)), self.each[0])
        return own(name, type)


def _known(checkpoint: Checkpoint, name: str) -> bool:
    parts = name.split(".")
    known = (*(key for key, _ in checkpoint.terms), *checkpoint.shapes)
    return any(key.split(".")[:2] == parts[:2] for key in known)


def near(found: np.ndarray[Any, Any], truth: Any) -> None:
    due = np.array(truth)
    assert found.shape == due.shape
    assert np.abs(found - due).max() <= 1e-5 * np.abs(due).max()


@PASSES
def test_features_of_images_are_those_of_transformers(pipeline: str) -> None:
    plain = llmir.load(LLAVA, logits="all")
    program = llmir.run(plain, pipeline)
    weights, patches = Weights(plain.phases["encode"]), cut(pixels(2, 3, TILE), SIDE)
    (found,), caches = interpret(program, {"patches": patches}, weights, phase="encode")
    near(found, TRUTH["features"])
    assert not caches


@PASSES
def test_logits_of_prompts_with_images_are_those_of_transformers(pipeline: str) -> None:
    plain = llmir.load(LLAVA, logits="all")
    weights = Weights(plain)
    program = llmir.run(plain, ",".join(["place-images{tokens=5}", *([pipeline] if pipeline else [])]))
    given = {"tokens": np.array(PROMPT), "images": np.array(TRUTH["features"])}
    (found,), caches = interpret(program, given, weights)
    near(found, TRUTH["prefill"])
    for i, token in enumerate(NEXT):
        step = {"tokens": np.full((2, 1), token)}
        (found,), caches = interpret(program, step, weights, caches, context=len(PROMPT[0]) + i)
        near(found, TRUTH["decode"][i])


def test_text_alone_is_as_in_transformers() -> None:
    program = llmir.load(LLAVA, logits="all")
    prompt = np.where(np.array(PROMPT) == IMAGE, 5, PROMPT)
    (found,), _ = interpret(program, {"tokens": prompt}, Weights(program))
    near(found, TRUTH["text"])


@PASSES
def test_a_step_of_dit_is_that_of_diffusers(pipeline: str) -> None:
    plain = llmir.load(DIT)
    program = llmir.run(plain, pipeline)
    side, edge = DIT["patch_size"], DIT["sample_size"]
    given = {
        "patches": cut(pixels(2, DIT["in_channels"], edge), side),
        "timestep": np.array(TIMESTEPS, dtype=float),
        "label": np.array(LABELS),
    }
    (found,), caches = interpret(program, given, Weights(plain))
    parts = found.reshape(2, edge // side, edge // side, side, side, DIT["out_channels"])
    near(parts.transpose(0, 5, 1, 3, 2, 4).reshape(2, -1, edge, edge), TRUTH["dit"])
    assert not caches


@pytest.mark.parametrize(("config", "key"), [(LLAVA, "parameters"), (DIT, "dit_parameters")])
def test_a_checkpoint_has_the_names_and_shapes_of_the_class(config: dict[str, Any], key: str) -> None:
    assert {name: list(t.shape) for name, t in expected(llmir.load(config)).items()} == TRUTH[key]


def test_decode_takes_no_images_and_prints_as_it_is() -> None:
    program = llmir.run(llmir.load(LLAVA), "place-images{tokens=5}")
    assert [n.name for n in program["main"].inputs] == ["tokens", "images"]
    assert [n.name for n in program.phases["decode"]["main"].inputs] == ["tokens"]
    assert llmir.parse_program(llmir.print_program(program)) == program


def test_the_time_to_the_first_token_has_encode_in_it() -> None:
    program = llmir.run(llmir.load("llava-onevision-qwen2-0.5b"), llmir.pipeline_of())
    with_images = llmir.run(program, "place-images{tokens=1485}")  # of a square: whole, and as one tile
    asked: dict[str, Any] = {"batch": 4, "generate": 16}
    text = llmir.workload(program, "a100", **records(llmir.workload, prompt=64 + 1485, chunk="all", **asked))
    both = llmir.workload(with_images, "a100", **records(llmir.workload, prompt=64, **asked))
    assert both.encode is not None and (both.images, both.encode.batch) == (2, 8)
    assert both.ttft_s == float(both.encode.time_s) + float(both.prefill.time_s)
    assert text.encode is None and both.tpot_s == text.tpot_s
    assert both.prefill.matmul_flops == text.prefill.matmul_flops
    tower = sum(n for kind, n in program.parameters_by_kind.items() if kind.startswith("encode."))
    assert text.prefill.weight_bytes == 2 * program.parameters == both.encode.weight_bytes
    assert tower == 397_747_744 + 1_837_696 and program.parameters == 893_675_552
    # SigLIP's linear layers and attention over 729 patches, the patches themselves, and the projector.
    layer = 2 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 729 * 1152
    image = 729 * (26 * layer + 2 * 3 * 14 * 14 * 1152 + 2 * (1152 * 896 + 896**2))
    assert both.encode.matmul_flops == 8 * image
    by_chunks = llmir.workload(program, "a100", **records(llmir.workload, prompt=64 + 1485, **asked))
    assert both.max_batch <= by_chunks.max_batch


def test_stages_leave_the_tower_on_the_first() -> None:
    program = llmir.run(llmir.load("llava-onevision-qwen2-0.5b"), "stages{pp=2},shard{tp=2}")
    assert program.phases["encode"].entries == ("main",)
    weights = [s.weight_bytes for s in llmir.analyze(program, "a100", batch=2, new=8).stages]
    assert weights[0] > weights[1] + 2 * 397_747_744 // 2 * 0.9
    assert llmir.analyze(program, "a100", batch=2, phase="encode").weight_bytes == weights[0]


def test_images_that_leave_no_text_are_refused() -> None:
    both = "place-images{tokens=729},prune-tokens{layers=(500x24)}"
    program = llmir.run(llmir.load("llava-onevision-qwen2-0.5b"), both)
    with pytest.raises(InputError, match="prompt: 729 tokens of images leave nothing of the 500"):
        llmir.workload(program, "a100")


def test_what_has_no_images_or_no_tokens_says_so() -> None:
    text, dit = llmir.load("llama3.2-1b"), llmir.load("DiT-XL/2")
    with pytest.raises(PassError, match=r"Llama-3.2-1B has no image tower that llmir models"):
        llmir.run(text, "place-images{tokens=5}")
    with pytest.raises(InputError, match=r"phase: Llama-3.2-1B has no encode, the step of images"):
        llmir.analyze(text, "a100", phase="encode")
    for wrong in ({"new": 5}, {"context": 1}, {"phase": "decode"}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}: DiT-XL-2-256 reads 256 patches"):
            llmir.analyze(dit, "a100", **records(llmir.analyze, **wrong))  # type: ignore[arg-type]
    for name in ("prompt", "generate"):
        with pytest.raises(InputError, match=f"{name}: DiT-XL-2-256 reads 256 patches of each image"):
            llmir.workload(dit, "a100", **records(llmir.workload, **{name: 5}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="logits: DiTTransformer2DModel has none"):
        llmir.load("DiT-XL/2", logits="all")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"vision_feature_layer": -2}, r"\$.vision_feature_layer: -2 is not modelled"),
        ({"vision_feature_select_strategy": "default"}, r"\$.vision_feature_select_strategy: \"default\""),
        ({"text_config": {**LLAVA["text_config"], "model_type": "llama"}}, r"\$.text_config.model_type"),
        ({"vision_config": {**LLAVA["vision_config"], "vision_use_head": True}}, r"\$.vision_config.vision"),
        ({"vision_config": {**LLAVA["vision_config"], "depth": 3}}, r"\$.vision_config.depth: 3"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, r"\$.vision_config.model_type"),
    ],
)
def test_another_llava_is_refused(config: dict[str, Any], error: str) -> None:
    with pytest.raises(UnsupportedError, match=error):
        llmir.load({**LLAVA, **config})


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"norm_type": "ada_norm"}, r"\$.norm_type"),
        ({"activation_fn": "geglu"}, r"\$.activation_fn"),
        ({"use_linear_projection": True}, r"\$.use_linear_projection"),
    ],
)
def test_another_dit_is_refused(config: dict[str, Any], error: str) -> None:
    with pytest.raises(UnsupportedError, match=error):
        llmir.load({**DIT, **config})


def test_a_phase_that_encodes_lies_on_the_mesh_of_the_program() -> None:
    program = llmir.load(LLAVA)
    with pytest.raises(VerifyError, match="phase encode: mesh is"):
        llmir.run(program.replace(phases=llmir.run(program, "shard{tp=2}").phases), "dce")
