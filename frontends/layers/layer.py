"""A decoder layer as data: norm, mixer, residual, norm, MLP, residual; and its variants.

- `Layer`: the common form; the mixer or the MLP may be missing
- `AlternatingLayer`, `Laurel`: several streams of hidden states, and low-rank products in parallel with
  mixers (Gemma 3n)
- `LayerTable`, `PerLayer`: a second embedding table that each layer reads (Gemma 3n, Gemma 4)
- `Streams`: residuals in several streams (`llmir/ir/ops/residual_streams.py`)
- `kinds_by_letter`, `fold`: the kinds of layers from a config's pattern, and the smallest number of loops
  that builds them
"""

from __future__ import annotations

from functools import lru_cache, reduce
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Protocol

from llmir.base.dataclass import dataclass
from llmir.frontends.config.reader import Config
from llmir.frontends.config.source import show
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value
from llmir.ir.ops import make

from .blocks import Blocks

# --- Alternating updates and low-rank products ---

_ALTERNATING_BLOCK = "altup"


@dataclass(frozen=True)
class Laurel:
    """A low-rank product in parallel with a mixer; the sum of both outputs is divided by √2 (Gemma 3n)."""

    rank: int

    def build(self, blocks: Blocks, seen: Value, total: Value) -> Value:
        """(total + seen + norm(right(left(seen)))) / √2."""
        b, at = blocks.b, blocks.sized(k=self.rank)
        with b.block("laurel"):
            low = at.linear(seen, "b t h", "h k", "b t k", "laurel_left", "laurel.linear_left")
            x = at.linear(low, "b t k", "k h", "b t h", "laurel_right", "laurel.linear_right")
        x = at.norm(x, "laurel_norm", "laurel.post_laurel_norm")
        with b.block("laurel"):
            x = b.add(total, b.add(seen, x, name="laurel_add"), name="laurel_sum")
            return at.scale(x, 0.5**0.5, "laurel_scale")


@dataclass(frozen=True)
class AlternatingUpdates:
    """`count` streams of hidden states; layers compute on the `active` one (arXiv:2301.13310)."""

    count: int
    active: int

    def expand(self, blocks: Blocks, x: Value) -> Value:
        """The input streams of the first layer: x, and projections of x that are scaled to the RMS of x."""
        b = blocks.b
        with b.block(_ALTERNATING_BLOCK):
            at, among = blocks.sized(j=blocks.hidden), range(self.count - 1)
            weights = [at.weight("h J", f"altup_{i}.weight", f"altup_projections.{i}.weight") for i in among]
            einsum = f"b t h{', h J' * len(among)} -> {', '.join(['b t J'] * len(among))}"
            wide = b.apply(
                make("linear", einsum=einsum, block=_ALTERNATING_BLOCK), x, *weights, name="altup_projections"
            )
            others = [b.match_rms(y, x, name=f"altup_match_{i}") for i, y in enumerate(wide)]
            streams: Value = b.stack(x, *others, name="streams")
            return streams

    def contract(self, blocks: Blocks, streams: Value) -> Value:
        """The mean of the first stream and of projections of the others, which are scaled to its RMS."""
        b, at = blocks.b, blocks.sized(j=blocks.hidden)
        with b.block(_ALTERNATING_BLOCK):
            first, *others = (b.pick(streams, index=i, name=f"stream_{i}") for i in range(self.count))
            found = [first]
            for i, other in enumerate(others):
                name = f"altup_unembed_projections.{i}"
                back = at.linear(other, "b t h", "h J", "b t J", f"altup_back_{i}", name)
                found.append(b.match_rms(back, first, name=f"altup_unmatch_{i}"))
            total = reduce(lambda x, y: b.add(x, y, name="streams_add"), found)
            return blocks.scale(total, 1 / self.count, "streams_mean")


@dataclass(frozen=True)
class AlternatingLayer:
    """Runs a layer on one of several streams, then corrects all streams.

    The tail of the layer reads the active stream, scaled by a learned factor if `scaled`. Its result is added
    to all streams except the first.
    """

    layer: Layer
    altup: AlternatingUpdates
    scaled: bool = True

    @property
    def mixer(self) -> Sublayer | None:
        """The sublayer that mixes tokens; None without such a sublayer."""
        return self.layer.mixer

    @property
    def streams(self) -> None:
        """None, because residual streams with mixing weights per token do not occur."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the sublayers."""
        return self.layer.kinds

    def build(self, blocks: Blocks, streams: Value) -> Value:
        """Add the layer to the program; return all streams after the correction."""
        b, active = blocks.b, self.altup.active
        with b.block(_ALTERNATING_BLOCK):
            start = b.pick(streams, index=active, name="stream")
        mixed = self._coefficients(blocks, start, "predict", "k st St", "b t st St", "altup.prediction_coefs")
        with b.block(_ALTERNATING_BLOCK):
            streams = b.add(b.stream_mix(streams, mixed, name="mix_streams"), streams, name="predicted")
            start = b.pick(streams, index=active, name="predicted_stream")
        total = self.layer.inner(blocks, start)
        mixed = self._coefficients(blocks, total, "correct", "k st", "b t st", "altup.correction_coefs")
        with b.block(_ALTERNATING_BLOCK):
            new = b.subtract(total, start, name="innovation")
            streams = b.stream_add(streams, new, mixed, offset=1.0, name="corrected")
            seen = b.pick(streams, index=active, name="corrected_stream")
            if self.scaled:
                seen = b.scale_by(
                    seen, blocks.weight("h", "correct_output_scale", "altup.correct_output_scale")
                )
        if not self.layer.tail:
            return streams
        added = self.layer.tail.mixed(blocks, seen)
        with b.block(_ALTERNATING_BLOCK):
            found: Value = b.stream_add(streams, added, first=1, name="streams_out")
            return found

    def _coefficients(self, blocks: Blocks, x: Value, name: str, weight: str, out: str, param: str) -> Value:
        """The coefficients that mix or correct the streams, computed from x."""
        b, at = blocks.b, blocks.sized(st=self.altup.count, k=self.altup.count)
        x = at.norm(x, f"{name}_norm", "altup.router_norm")
        with b.block(_ALTERNATING_BLOCK):
            x = b.scale(x, factor=1 / blocks.hidden, name=f"{name}_scale")
            x = at.linear(x, "b t h", "h k", "b t k", f"{name}_router", "altup.modality_router")
            x = b.tanh(at.cast(x, FP32), name=f"{name}_tanh")
            return at.linear(at.cast(x, at.dtype), "b t k", weight, out, f"{name}_coefs", param)


# --- Per-layer embeddings ---

_LAYER_INPUT_BLOCK = "per_layer_input"


@dataclass(frozen=True)
class LayerTable:
    """A table with `rows` rows, which contain `size` numbers per layer; unknown token ids use the first row.

    Rows are scaled by `scale`, and averaged with a projection of the first hidden states.
    """

    rows: int
    layers: int
    size: int
    scale: float

    def build(self, blocks: Blocks, tokens: Value, x: Value) -> None:
        """Compute the rows from token ids and the first hidden states, and offer them to the layers."""
        b, at = blocks.b, blocks.sized(v=self.rows, ly=self.layers, li=self.size)
        with b.block("embedding"):
            table = at.weight("v ly li", "layer_embed.weight", "embed_tokens_per_layer.weight")
            own = b.layer_embedding(table, tokens, rows=self.rows)
            own = at.scale(own, self.scale, "layer_embedding_scale")
        with b.block(_LAYER_INPUT_BLOCK):
            name = "per_layer_model_projection"
            seen = at.linear(x, "b t h", "h ly li", "b t ly li", "per_layer_proj", name)
            seen = b.scale(seen, factor=blocks.hidden**-0.5, name="per_layer_proj_scale")
        seen = at.norm(seen, "per_layer_norm", "per_layer_projection_norm", "li")
        with b.block(_LAYER_INPUT_BLOCK):
            both = b.scale(b.add(seen, own, name="per_layer_sum"), factor=0.5**0.5, name="per_layer")
        blocks.beside.hand("per_layer", both, ("batch", "seq", "layer", "layer_input"))


@dataclass(frozen=True)
class PerLayer:
    """The part of a layer that reads its `size` numbers from a `LayerTable`.

    Hidden states gate these numbers. The gated numbers are projected, normalized and added to the hidden
    states. A parameter `scalar`, if any, scales the sum.
    """

    size: int
    activation: str = "gelu_tanh"
    scalar: str = ""

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add `mixed` to x, and scale the sum."""
        b = blocks.b
        if self.size:
            mixed = self.mixed(blocks, x)
            with b.block(_LAYER_INPUT_BLOCK):
                x = b.add(x, mixed, name="per_layer_add")
        if not self.scalar:
            return x
        with b.block(_LAYER_INPUT_BLOCK):
            one = blocks.sized(a=1).weight("a", "layer_scalar", self.scalar, buffer=True)
            scaled: Value = b.scale_by(x, one, name="layer_scale")
            return scaled

    def mixed(self, blocks: Blocks, x: Value) -> Value:
        """The summand for the hidden states."""
        b, at = blocks.b, blocks.sized(li=self.size)
        with b.block(_LAYER_INPUT_BLOCK):
            own = b.pick(blocks.beside["per_layer"], name="layer_input")
            gate = at.linear(x, "b t h", "h li", "b t li", "layer_gate", "per_layer_input_gate")
            gated = b.mul(getattr(b, self.activation)(gate, name="layer_act"), own, name="layer_mul")
            mixed = at.linear(gated, "b t li", "li h", "b t h", "layer_proj", "per_layer_projection")
        return at.norm(mixed, "layer_input_norm", "post_per_layer_input_norm")


# --- Layer patterns by letter ---

_PATTERN = "hybrid_override_pattern"
_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_KINDS |= {kind: kind for kind in _KINDS.values()}
_KINDS |= {"mamba": "linear_attention", "attention": "full_attention"}


def kinds_by_letter(config: Config) -> tuple[str, ...]:
    """The kind of each layer, from one word or one letter per layer."""
    field = next((key for key in ("layers_block_type", "layer_types") if config.texts(key)), _PATTERN)
    pattern = config.text(_PATTERN, "M*-E")
    for each in (found := config.texts(field) if field != _PATTERN else tuple(pattern)):
        if each not in _KINDS:
            raise config.error(field, f"{show(each)} is no layer; {', '.join(_KINDS)} are")
    return tuple(_KINDS[each] for each in found)


# --- Repeats of layers ---

# The time of the search grows with the square of the length, so longer patterns only merge equal neighbors.
# The deepest published models have some 130 layers.
LONGEST = 256


class Times(NamedTuple):
    """A kind of layer, or a sequence of kinds, repeated `times` times."""

    times: int
    of: int | tuple[Times, ...]


@lru_cache(maxsize=64)
def fold(kinds: tuple[int, ...]) -> tuple[Times, ...]:
    """The smallest number of repeats that expands to `kinds`, including nested repeats.

    >>> gemma_3 = fold(((0,) * 5 + (1,)) * 10 + (0, 0))
    >>> gemma_3 == (Times(10, (Times(5, 0), Times(1, 1))), Times(2, 0))
    True
    """
    plain = _runs(kinds)
    if len(plain) <= 3 or len(kinds) > LONGEST:  # a loop body of several kinds has at least three repeats
        return plain
    size = len(kinds)
    turns = [0]  # number of changes of kind before each layer
    for before, kind in pairwise(kinds):
        turns.append(turns[-1] + (before != kind))
    alike = [0] * (size + 1)  # for each period length: the number of layers from here on that repeat
    best = [0] * (size + 1)  # the smallest number of repeats for the layers from each layer on
    parts = [(0, 0)] * size  # the first of these repeats: its length and its number of repetitions
    for start in reversed(range(size)):
        best[start] = size + 1
        for length in range(1, size - start + 1):
            same = start + length < size and kinds[start] == kinds[start + length]
            alike[length] = alike[length] + 1 if same else 0
            inside = turns[start + length - 1] - turns[start] + 1
            own = 1 if length == 1 else 1 + inside
            if own > best[start] or inside < min(length, 2):
                continue
            for times in range(1 + alike[length] // length, min(length, 2) - 1, -1):
                if (cost := own + best[start + times * length]) < best[start]:
                    best[start], parts[start] = cost, (length, times)
    found, at = [], 0
    while at < size:
        length, times = parts[at]
        found.append(Times(times, kinds[at] if length == 1 else _runs(kinds[at : at + length])))
        at += length * times
    return tuple(found)


def _runs(kinds: tuple[int, ...]) -> tuple[Times, ...]:
    return tuple(Times(len(list(run)), kind) for kind, run in groupby(kinds))


# --- Residual streams ---

_STREAMS_BLOCK = "streams"
_LEARNED = (("j", "base"), ("k", "scale"))


@dataclass(frozen=True)
class Streams:
    """`count` residual streams; the matrix that mixes the streams is normalized in `iterations` steps.

    The checkpoint names of the weights are `hc_attn` and `hc_ffn` for the sublayers, and `hc_head` for the
    head.
    """

    count: int
    iterations: int
    eps: float
    norm_eps: float

    def split(self, blocks: Blocks, x: Value) -> Value:
        """Copy the input of the first layer to each stream."""
        result: Value = blocks.b.split_streams(x, streams=self.count, name="streams", block=_STREAMS_BLOCK)
        return result

    def join(self, blocks: Blocks, streams: Value) -> Value:
        """The input of the last norm."""
        with blocks.b.block(_STREAMS_BLOCK):
            given = self._given(blocks, streams, "hc_head", self.count, 1)
            x: Value = blocks.b.join_streams(*given, eps=self.eps, norm_eps=self.norm_eps, name="join")
            return x

    def enter(self, blocks: Blocks, streams: Value, part: str) -> tuple[Value, ...]:
        """The input of a sublayer's norm; also the weights and the matrix that `leave` needs."""
        with blocks.b.block(_STREAMS_BLOCK):
            given = self._given(blocks, streams, f"hc_{part}", (2 + self.count) * self.count, 3)
            how: dict[str, Any] = {"eps": self.eps, "norm_eps": self.norm_eps}
            how |= {"iterations": self.iterations, "name": f"enter_{part}"}
            found: tuple[Value, ...] = blocks.b.enter_streams(*given, **how)
            return found

    def leave(self, blocks: Blocks, streams: Value, x: Value, by: tuple[Value, ...], part: str) -> Value:
        """The streams after a sublayer with the output x."""
        result: Value = blocks.b.leave_streams(streams, x, *by, name=f"leave_{part}", block=_STREAMS_BLOCK)
        return result

    def _given(self, blocks: Blocks, streams: Value, name: str, logits: int, scales: int) -> list[Value]:
        """The operands of the stream ops: streams, logits per token, base and scales, in fp32."""
        at = blocks.sized(s=self.count, j=logits, k=scales)
        weight = at.weight("s h j", f"{name}.weight", f"{name}_fn", dtype=FP32)
        einsum = "b t s h, s h j -> b t j"
        found = at.b.linear(streams, weight, einsum=einsum, to="fp32", name=name)
        learned = [at.weight(a, f"{name}.{n}", f"{name}_{n}", dtype=FP32) for a, n in _LEARNED]
        return [streams, found, *learned]


def streams(config: Config) -> Streams:
    """Read the residual streams of a config; epsilon is equal to the epsilon of the model's norms."""
    return Streams(
        count=config.integer("hc_mult", 4),
        iterations=config.integer("hc_sinkhorn_iters", 20),
        eps=config.number("hc_eps", 1e-6),
        norm_eps=config.number("rms_norm_eps", 1e-6),
    )


# --- Layers ---


class Sublayer(Protocol):
    """A mixer or an MLP: its name in bodies, its block of the model, and its construction."""

    @property
    def kind(self) -> str:
        """The name of this part in the names of bodies."""

    @property
    def block(self) -> str:
        """The block of the model that the residual sum belongs to."""

    def build(self, blocks: Blocks, x: Value, /) -> Value:
        """Build the summand for the hidden states from the normalized hidden states."""


@dataclass(frozen=True)
class Norms:
    """The checkpoint names of a layer's norms; None means no norm."""

    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


POST_NORMS = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
"""Of what sublayers give, and not of what they see (OLMo 2)."""


class LayerLike(Protocol):
    """The interface of all kinds of layers."""

    @property
    def mixer(self) -> Sublayer | None:
        """The sublayer that mixes tokens."""

    @property
    def streams(self) -> Streams | None:
        """The residual streams with mixing weights per token; None for an ordinary residual."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its parts."""

    def build(self, blocks: Blocks, start: Value, /) -> Value:
        """Build the output hidden states from the input hidden states."""


@dataclass(frozen=True)
class Layer:
    """Norm, mixer, residual; norm, MLP, residual. The mixer or the MLP may be missing.

    - `parallel`: Both sublayers read the layer's input, each through its own norm or both through the mixer's
      norm.
    - `residual`: The factor of each sublayer's output.
    - `kept`: The residual is the output of a sublayer's norm instead of the norm's input. The two numbers
      multiply the residuals of the mixer and of the MLP.
    - `streams`: Several residual streams around both sublayers.
    - `shared`: A shared block; its output is added to the input of the mixer's norm.
    - `laurel`: A learned low-rank residual in parallel with the mixer.
    - `tail`: A part that runs after both sublayers.
    """

    mixer: Sublayer | None
    mlp: Sublayer | None
    norms: Norms = Norms()
    parallel: bool = False
    residual: float = 1.0
    kept: tuple[float, float] | None = None
    streams: Streams | None = None
    shared: Sublayer | None = None
    laurel: Laurel | None = None
    tail: PerLayer | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the sublayers, in order; "" for a missing sublayer."""
        return tuple(part.kind if part else "" for part in (self.shared, self.mixer, self.mlp))

    def build(self, blocks: Blocks, start: Value) -> Value:
        """Add the layer to the program; return the hidden states after it."""
        total = self._through(blocks, start, self.streams) if self.streams else self.inner(blocks, start)
        return self.tail.build(blocks, total) if self.tail else total

    def inner(self, blocks: Blocks, start: Value) -> Value:
        """The layer on one stream, without its tail."""
        b, total, seen, norms, beside = blocks.b, start, start, self.norms, None
        if self.shared:
            added = self.shared.build(blocks, start)
            seen = self._add(blocks, start, added, self.shared.block, "shared_add")
        if self.mixer:
            seen = self._norm(blocks, seen, "input_norm", norms.before_mixer)
            mixed = self._norm(blocks, self.mixer.build(blocks, seen), "mixer_norm", norms.after_mixer)
            total = self._kept(blocks, seen, 0, self.mixer.block) if self.kept else total
            if self.parallel and self.mlp:  # both sublayers share one sum over ranks
                beside = mixed
            else:
                total = self._add(blocks, total, mixed, self.mixer.block, f"{self.mixer.block}_add")
            if self.laurel:
                total = self.laurel.build(blocks, seen, total)
        if self.mlp:
            if not (self.parallel and norms.before_mlp is None):
                seen = self._norm(blocks, start if self.parallel else total, "post_norm", norms.before_mlp)
            mixed = self._norm(blocks, self.mlp.build(blocks, seen), "mlp_norm", norms.after_mlp)
            if beside:
                with b.block(self.mlp.block):
                    mixed = b.add(beside, mixed, name="parallel_add")
            total = self._kept(blocks, seen, 1, self.mlp.block) if self.kept else total
            total = self._add(blocks, total, mixed, self.mlp.block, "mlp_add")
        return total

    def _through(self, blocks: Blocks, total: Value, streams: Streams) -> Value:
        """The streams after both sublayers."""
        attention, mlp = ("attn", self.mixer, "input_norm"), ("ffn", self.mlp, "post_norm")
        norms = self.norms.before_mixer, self.norms.before_mlp
        for (part, sublayer, name), param in zip((attention, mlp), norms, strict=True):
            assert sublayer
            x, *by = streams.enter(blocks, total, part)
            given = sublayer.build(blocks, self._norm(blocks, x, name, param))
            total = streams.leave(blocks, total, given, tuple(by), part)
        return total

    def _norm(self, blocks: Blocks, x: Value, name: str, param: str | None) -> Value:
        return x if param is None else blocks.norm(x, name, param)

    def _kept(self, blocks: Blocks, x: Value, which: int, block: str) -> Value:
        with blocks.b.block(block):
            return blocks.scale(x, self.kept[which] if self.kept else 1.0, f"kept_scale_{which}")

    def _add(self, blocks: Blocks, x: Value, mixed: Value, block: str, name: str) -> Value:
        with blocks.b.block(block):
            mixed = blocks.scale(mixed, self.residual, f"{name}_scale")
            total: Value = blocks.b.add(x, mixed, name=name)
            return total
