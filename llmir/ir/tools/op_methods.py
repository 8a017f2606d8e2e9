"""The ops as methods of a Builder; `python scripts/opmethods.py` wrote this file from their classes."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmir.ir.core.graph import Value
from llmir.ir.core.tensor import Tensor


class OpMethods:
    """A method for each op; `name` is the new op's, `block` the part of the model that it belongs to."""

    _op: Callable[..., Any]

    def add(self, x: Value, y: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """a + b.

        `*, * -> *`
        """
        return self._op("add", (x, y), name, block)

    def add_rms_norm(
        self,
        x: Value,
        y: Value,
        weight: Value,
        /,
        *,
        eps: float = 1e-06,
        offset: float = 0.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """(x + y, rms_norm(x + y)): the residual is updated in place.

        `* h!, * h!, h! -> * h!, * h!`
        """
        return self._op("add_rms_norm", (x, y, weight), name, block, eps=eps, offset=offset)

    def add_rms_norm_quantize(
        self,
        x: Value,
        y: Value,
        weight: Value,
        /,
        *,
        eps: float = 1e-06,
        offset: float = 0.0,
        to: str = "",
        static: bool = False,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """(x + y, rms_norm(x + y) quantized to `to`); the residual is updated in place.

        `* h!, * h!, h! -> * h!, * h!`
        """
        return self._op(
            "add_rms_norm_quantize", (x, y, weight), name, block, eps=eps, offset=offset, to=to, static=static
        )

    def all_gather(
        self,
        x: Value,
        *beside: Value,
        over: tuple[str, ...],
        dim: int,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """split along `dim` (−1: along the tokens) → replicated."""
        return self._op("all_gather", (x, *beside), name, block, over=over, dim=dim)

    def all_reduce(
        self, x: Value, /, *, over: tuple[str, ...], name: str = "", block: str | None = None
    ) -> Value:
        """partial → replicated."""
        return self._op("all_reduce", (x,), name, block, over=over)

    def all_reduce_add_rms_norm(
        self,
        y: Value,
        x: Value,
        weight: Value,
        /,
        *,
        eps: float = 1e-06,
        offset: float = 0.0,
        over: tuple[str, ...] = (),
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """(y + x, rms_norm(y + x)) where y is a sum over the ranks that the mesh axes `over` join.

        `* h!, * h!, h! -> * h!, * h!`
        """
        return self._op(
            "all_reduce_add_rms_norm", (y, x, weight), name, block, eps=eps, offset=offset, over=over
        )

    def all_reduce_add_rms_norm_quantize(
        self,
        y: Value,
        x: Value,
        weight: Value,
        /,
        *,
        eps: float = 1e-06,
        offset: float = 0.0,
        to: str = "",
        static: bool = False,
        over: tuple[str, ...] = (),
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """(y + x, rms_norm(y + x) quantized), where y is a partial sum over the ranks of `over`.

        `* h!, * h!, h! -> * h!, * h!`
        """
        return self._op(
            "all_reduce_add_rms_norm_quantize",
            (y, x, weight),
            name,
            block,
            eps=eps,
            offset=offset,
            to=to,
            static=static,
            over=over,
        )

    def all_to_all(
        self,
        x: Value,
        /,
        *,
        over: tuple[str, ...],
        to: str,
        top_k: int = 0,
        experts: int = 0,
        routing: str = "chance",
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Send routed rows `to` the ranks of their experts, or back to the ranks of their tokens.

        Rows are split over the same axes before and after: evenly by token, and by expert according to the
        law `routing` for tokens that choose `top_k` of `experts` each.
        """
        return self._op(
            "all_to_all", (x,), name, block, over=over, to=to, top_k=top_k, experts=experts, routing=routing
        )

    def append(self, cache: Value, rows: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """A cache with the rows of the new tokens written at its end, in place and in the dtype of the cache.

        `b p *, b t * -> b (p+t) *`
        """
        return self._op("append", (cache, rows), name, block)

    def append_row(self, x: Value, row: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """The rows of x, followed by one row that is the same for each image: a learned end of an image.

        `b p h, n h -> b (p+n) h`
        """
        return self._op("append_row", (x, row), name, block)

    def attention_mask(self, x: Value, /, *, mask: str, name: str = "", block: str | None = None) -> Value:
        """Scores with −∞ where a query does not see a key, plus the bias of the mask.

        1 FLOP per element, as eager code adds the mask, plus the FLOPs of the bias.

        `* t! c! -> * t! c!`
        """
        return self._op("attention_mask", (x,), name, block, mask=mask)

    def attention_mix(
        self, probabilities: Value, v: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """probabilities · v.

        `b g r t c, b c g e -> b t g r e`
        """
        return self._op("attention_mix", (probabilities, v), name, block)

    def attention_scores(
        self, q: Value, k: Value, /, *, scale: float = 1.0, name: str = "", block: str | None = None
    ) -> Value:
        """q · kᵀ · scale, all queries against all keys.

        `b t g r d, b c g d -> b g r t c`
        """
        return self._op("attention_scores", (q, k), name, block, scale=scale)

    def block_scores(
        self, q: Value, k: Value, /, *, length: int, name: str = "", block: str | None = None
    ) -> Value:
        """The largest visible q · kᵀ in each block of `length` keys, in fp32; heads share the keys.

        FLOPs: 2·m·n·k for the product, and 1 (a comparison) per head and pair.

        `b t g y, b c! y -> b g t n`
        """
        return self._op("block_scores", (q, k), name, block, length=length)

    def block_sparse_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        index: Value,
        /,
        *,
        mask: str,
        scale: float = 1.0,
        cap: float = 0.0,
        to: str = "",
        length: int,
        top_k: int,
        local: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Attention of each query over the blocks of keys that an index selects (`select_blocks`).

        The index is the last operand. The op selects its largest values, with one comparison per
        candidate.

        `b t g r d, b c! g d, b c! g e, b g t n! -> b t g r e`
        """
        return self._op(
            "block_sparse_attention",
            (q, k, v, index),
            name,
            block,
            mask=mask,
            scale=scale,
            cap=cap,
            to=to,
            length=length,
            top_k=top_k,
            local=local,
        )

    def cast(self, x: Value, /, *, to: str, name: str = "", block: str | None = None) -> Value:
        """x in another element type.

        `* -> *`
        """
        return self._op("cast", (x,), name, block, to=to)

    def causal_conv(
        self, x: Value, weight: Value, state: Value, *bias: Value, name: str = "", block: str | None = None
    ) -> Any:
        """Σ weight[j] · x[t − w + 1 + j] (+ bias), channel by channel; its state is the last w − 1 tokens."""
        return self._op("causal_conv", (x, weight, state, *bias), name, block)

    def causal_conv_silu(
        self, x: Value, weight: Value, state: Value, *bias: Value, name: str = "", block: str | None = None
    ) -> Any:
        """`causal_conv` followed by silu, in one kernel."""
        return self._op("causal_conv_silu", (x, weight, state, *bias), name, block)

    def clamped_glu(
        self,
        gate: Value,
        up: Value,
        /,
        *,
        limit: float,
        slope: float,
        offset: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """g · sigmoid(slope · g) · (u + offset) in one pass: g is gate up to `limit`, u is up within
        ±`limit`.

        gpt-oss has an offset of 1 (arXiv:2508.10925).

        `*, * -> *`
        """
        return self._op("clamped_glu", (gate, up), name, block, limit=limit, slope=slope, offset=offset)

    def clip(self, x: Value, /, *, limit: float, name: str = "", block: str | None = None) -> Value:
        """x cut to ±limit; 2 FLOPs an element (two comparisons).

        `* -> *`
        """
        return self._op("clip", (x,), name, block, limit=limit)

    def combine(
        self,
        rows: Value,
        weights: Value,
        /,
        *,
        over: tuple[str, ...] = (),
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """The weighted sum of a token's routed rows; 2 FLOPs per routed element.

        If `dispatch` retained rows by expert over mesh axes `over`, the result is a partial sum over these
        axes.

        `(b t k) h, b t k -> b t h`
        """
        return self._op("combine", (rows, weights), name, block, over=over)

    def compress(self, x: Value, /, *, to: str, name: str = "", block: str | None = None) -> Value:
        """Convert each rank's part of x to the low-precision dtype `to` before it is sent, with scales.

        Each rank of a partial sum converts its summand, so the sum adds rounded summands.

        `* -> *`
        """
        return self._op("compress", (x,), name, block, to=to)

    def compress_rows(
        self, rows: Value, gates: Value, bias: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """The entries that the new tokens complete: Σ softmax(gate + bias) · row over the tokens of each.

        With two series, an entry combines the first series of the previous entry's tokens and the second
        series of its own. FLOPs per row and channel: 5 for the softmax, 1 for the bias, 2 for the sum.

        `b p! s! d, b p! s! d, w! s! d -> b n d`
        """
        return self._op("compress_rows", (rows, gates, bias), name, block)

    def compressed_attention(
        self,
        q: Value,
        keys: Value,
        sinks: Value,
        *entries_and_index: Value,
        mask: str,
        scale: float = 1.0,
        stride: int = 0,
        top_k: int = 0,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """softmax attention over a window of keys that all heads share and that are also the values, with
        sinks.

        With a `stride`, there are also compressed entries of this number of tokens; a query sees those
        that end at or before its position. With an index, a query sees the `top_k` entries that the index
        selects, with one comparison per candidate. Scores are not written to memory.
        """
        return self._op(
            "compressed_attention",
            (q, keys, sinks, *entries_and_index),
            name,
            block,
            mask=mask,
            scale=scale,
            stride=stride,
            top_k=top_k,
        )

    def concat(self, cache: Value, rows: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """A cache followed by the rows of new tokens, all in new memory, as `torch.cat` does.

        The next step uses the copy. The temporary coexistence of both caches is not counted.

        `b p *, b t * -> b (p+t) *`
        """
        return self._op("concat", (cache, rows), name, block)

    def cut(self, x: Value, /, *, elements: int, name: str = "", block: str | None = None) -> Value:
        """The first `elements` of the last axis, as a view; later elements are dropped.

        `* v! -> * w`
        """
        return self._op("cut", (x,), name, block, elements=elements)

    def decay_gate(
        self, x: Value, a_log: Value, bias: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """−e^a · softplus(x + bias), the logarithm of a decay of each head.

        `b t g r, g r, g r -> b t g r`
        """
        return self._op("decay_gate", (x, a_log, bias), name, block)

    def decompress(self, x: Value, /, *, to: str, name: str = "", block: str | None = None) -> Value:
        """x after the transfer, in the dtype `to` again.

        `* -> *`
        """
        return self._op("decompress", (x,), name, block, to=to)

    def dequantize(self, x: Value, /, *, to: str, name: str = "", block: str | None = None) -> Value:
        """x from low precision to the dtype `to`, times its scales; 1 FLOP per element.

        `* -> *`
        """
        return self._op("dequantize", (x,), name, block, to=to)

    def dispatch(
        self,
        x: Value,
        chosen: Value,
        /,
        *,
        experts: int,
        over: tuple[str, ...] = (),
        routing: str = "chance",
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """Copy each token's row once for each chosen expert, with the number of the expert.

        If experts are sharded over the mesh axes `over` and tokens are not, or if tokens were sent to the
        ranks of their experts, each rank retains the rows of its own experts. Their number follows from
        the law `routing` over the `experts` of the model.

        `b t h, b t k -> (b t k) h, (b t k)`
        """
        return self._op("dispatch", (x, chosen), name, block, experts=experts, over=over, routing=routing)

    def embedding(
        self, table: Value, ids: Value, /, *, to: str = "", name: str = "", block: str | None = None
    ) -> Value:
        """The rows of a table with the given token ids, in the dtype `to`.

        Reads these rows, not the whole table.

        `[v] h, b t -> b t h`
        """
        return self._op("embedding", (table, ids), name, block, to=to)

    def enter_streams(
        self,
        streams: Value,
        logits: Value,
        base: Value,
        scale: Value,
        /,
        *,
        eps: float = 1e-06,
        norm_eps: float = 1e-06,
        iterations: int = 20,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value, Value]:
        """`join_streams`, plus the coefficients for the exit: a weight per stream, and the matrix that mixes
        them.

        The weights are 2 · sigmoid. The matrix is a softmax over rows; then its columns and rows are
        alternately divided by their sums, `iterations` times in total (Sinkhorn and Knopp), at 2 FLOPs per
        element.

        `b t n! h!, b t k!, k!, s! -> b t h!, b t n!, b t n! m`
        """
        return self._op(
            "enter_streams",
            (streams, logits, base, scale),
            name,
            block,
            eps=eps,
            norm_eps=norm_eps,
            iterations=iterations,
        )

    def expert_scale(
        self, weights: Value, chosen: Value, scales: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """The weights of the chosen experts, each multiplied by the learned scale of its expert (Gemma 4).

        `b t k, b t k, [e] -> b t k`
        """
        return self._op("expert_scale", (weights, chosen, scales), name, block)

    def flash_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *sinks: Value,
        mask: str,
        scale: float = 1.0,
        cap: float = 0.0,
        to: str = "",
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """softmax(q · kᵀ · scale) · v without the scores in memory (arXiv:2205.14135), of the pairs of a
        mask.

        Scores are capped softly unless `cap` is 0, and the softmax may have sinks. Reads q once, and the
        keys and values that at least one query sees; writes the output once, in the dtype `to` or that of
        q.

        `b t g r d, b c! g d, b c! g e -> b t g r e`
        """
        return self._op(
            "flash_attention", (q, k, v, *sinks), name, block, mask=mask, scale=scale, cap=cap, to=to
        )

    def gated_delta(
        self,
        q: Value,
        k: Value,
        v: Value,
        decay: Value,
        beta: Value,
        state: Value,
        /,
        *,
        chunk: int = 1,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """The gated delta rule (arXiv:2412.06464): S ← α·S, S ← S + β·k·(v − Sᵀk)ᵀ, y = Sᵀq·scale.

        α is e^decay, for each head or for each row of S (KDA, arXiv:2510.26692). Chunks use the WY form of
        section 3.3 there.
        """
        return self._op("gated_delta", (q, k, v, decay, beta, state), name, block, chunk=chunk, scale=scale)

    def gaussian_top(
        self, x: Value, moments: Value, /, *, sparsity: float, name: str = "", block: str | None = None
    ) -> Value:
        """max(x − cutoff, 0), where a share 1 − `sparsity` of normally distributed elements would exceed the
        cutoff.

        The cutoff follows from the mean and standard deviation of the token's elements, computed from
        `moments` (Gemma 3n).

        `b t f, b t s! -> b t f`
        """
        return self._op("gaussian_top", (x, moments), name, block, sparsity=sparsity)

    def gelu(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x · Φ(x), Φ the normal distribution (arXiv:1606.08415).

        `* -> *`
        """
        return self._op("gelu", (x,), name, block)

    def gelu_mul(self, gate: Value, up: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """gelu(gate) · up in one pass over memory.

        `*, * -> *`
        """
        return self._op("gelu_mul", (gate, up), name, block)

    def gelu_tanh(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x · Φ(x), Φ by a hyperbolic tangent (arXiv:1606.08415, section 2).

        `* -> *`
        """
        return self._op("gelu_tanh", (x,), name, block)

    def gelu_tanh_mul(self, gate: Value, up: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """gelu_tanh(gate) · up in one pass over memory.

        `*, * -> *`
        """
        return self._op("gelu_tanh_mul", (gate, up), name, block)

    def group_norm(
        self,
        x: Value,
        squares: Value,
        weight: Value,
        /,
        *,
        eps: float = 1e-06,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """x / √(squares / count + eps) · w, RMSNorm over all heads of a group; 2 FLOPs per element.

        `b t g r d!, b t g, g r d! -> b t g r d!`
        """
        return self._op("group_norm", (x, squares, weight), name, block, eps=eps)

    def grouped_linear(
        self,
        x: Value,
        *weights_and_experts: Value,
        einsum: str,
        top_k: int,
        experts: int,
        to: str = "",
        routing: str = "chance",
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Each routed row times the weight of its expert: `s h, [e] h f, s -> s f`.

        Operands are rows, one weight per result, the experts of the rows, and optionally one bias per
        result. `top_k` is the number of rows per token, and `to` the dtype of the results if it differs
        from that of the rows. The op reads the weights of the touched experts. Uniform routing is expected
        to touch E·(1−(1−k/E)^tokens) of E experts; other laws of `routing` and parts of the experts have
        other formulas.
        """
        return self._op(
            "grouped_linear",
            (x, *weights_and_experts),
            name,
            block,
            einsum=einsum,
            top_k=top_k,
            experts=experts,
            to=to,
            routing=routing,
        )

    def hash_top_k(
        self,
        x: Value,
        table: Value,
        ids: Value,
        /,
        *,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """The experts of each token from a table by token id, and their scores divided by the sum of scores.

        The scores are multiplied by `scale`; 2 FLOPs per expert (hash routing, arXiv:2106.04426).

        `b t e!, [v]! k, b t -> b t k, b t k`
        """
        return self._op("hash_top_k", (x, table, ids), name, block, scale=scale)

    def index_scores(
        self,
        q: Value,
        k: Value,
        weights: Value,
        /,
        *,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Σ over heads of weight · relu(q · kᵀ) · scale, with keys shared by all heads, in fp32.

        FLOPs: 2·m·n·k for the products, and 1 per head and pair for relu.

        `b t i y, b c y, b t i -> b t c`
        """
        return self._op("index_scores", (q, k, weights), name, block, scale=scale)

    def inverse_root(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """1 / √x; 2 FLOPs per element.

        `* -> *`
        """
        return self._op("inverse_root", (x,), name, block)

    def join_half(self, x: Value, half: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """`half`, followed by the first half of each row of x, in new memory (`torch.cat`).

        `* d!, * e! -> * d!`
        """
        return self._op("join_half", (x, half), name, block)

    def join_streams(
        self,
        streams: Value,
        logits: Value,
        base: Value,
        scale: Value,
        /,
        *,
        eps: float = 1e-06,
        norm_eps: float = 1e-06,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Σ over streams of (sigmoid(logit · scale + base) + eps) · stream, with logits of the normalized
        streams.

        The logits are computed from the raw streams, and this op divides them by the RMS. FLOPs: 2 per
        element for the squares, 2 for the sum, 6 per logit.

        `b t n! h!, b t k!, k!, s! -> b t h!`
        """
        return self._op(
            "join_streams", (streams, logits, base, scale), name, block, eps=eps, norm_eps=norm_eps
        )

    def key_decay_gate(
        self, x: Value, a_log: Value, bias: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """A `decay_gate` for each element of a head's keys (KDA, arXiv:2510.26692).

        `b t g r d, g r, g r d -> b t g r d`
        """
        return self._op("key_decay_gate", (x, a_log, bias), name, block)

    def l2_norm(self, x: Value, /, *, eps: float = 1e-06, name: str = "", block: str | None = None) -> Value:
        """x / √(Σx² + eps) over the last axis; 3 FLOPs an element (square, sum, scale).

        `* d! -> * d!`
        """
        return self._op("l2_norm", (x,), name, block, eps=eps)

    def last_token(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """The last position of each sequence, the only one whose logits an engine needs.

        `b [t] h -> b h`
        """
        return self._op("last_token", (x,), name, block)

    def last_tokens(self, x: Value, /, *, count: int, name: str = "", block: str | None = None) -> Value:
        """The last `count` tokens of each sequence, or all if there are fewer.

        `b [t] * -> b k *`
        """
        return self._op("last_tokens", (x,), name, block, count=count)

    def latent_attention(
        self,
        q: Value,
        q_rope: Value,
        k: Value,
        k_rope: Value,
        *v: Value,
        mask: str,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Attention over latents without the scores in memory, of the pairs of a mask.

        The naive form has keys and values for each head, as in flash attention with heads of d + p and e.
        The absorbed form reads the latents once, as keys and values, and returns rows of latents
        (FlashMLA).
        """
        return self._op("latent_attention", (q, q_rope, k, k_rope, *v), name, block, mask=mask, scale=scale)

    def latent_mix(
        self, probabilities: Value, v: Value, /, *, name: str = "", block: str | None = None
    ) -> Any:
        """probabilities · v; values of each head, or latents that all share."""
        return self._op("latent_mix", (probabilities, v), name, block)

    def latent_scores(
        self,
        q: Value,
        q_rope: Value,
        k: Value,
        k_rope: Value,
        /,
        *,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """(q · kᵀ + rotary q · rotary kᵀ) · scale; keys of each head, or latents that all share."""
        return self._op("latent_scores", (q, q_rope, k, k_rope), name, block, scale=scale)

    def layer_embedding(
        self,
        table: Value,
        ids: Value,
        /,
        *,
        to: str = "",
        rows: int,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Look up token ids in a table that has one piece per layer; ids outside the table use the first row.

        The table has `rows` rows in the whole model.

        `[v] s h, b t -> b t s h`
        """
        return self._op("layer_embedding", (table, ids), name, block, to=to, rows=rows)

    def layer_norm(
        self,
        x: Value,
        *learned: Value,
        eps: float = 1e-05,
        offset: float = 0.0,
        over: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """(x − mean) / deviation · (w + offset) + b over the last `over` axes; 7 FLOPs per element.

        The FLOPs are a sum, a difference, a square and its sum, a scale, the weight and the bias. `b`, or
        both `w` and `b`, may be absent. They may have leading axes.
        """
        return self._op("layer_norm", (x, *learned), name, block, eps=eps, offset=offset, over=over)

    def leave_streams(
        self,
        streams: Value,
        x: Value,
        weights: Value,
        matrix: Value,
        /,
        *,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """The streams mixed by a matrix, and x added to each by its weight; 2 FLOPs a stream and element
        more.

        `b t n! h, b t h, b t m!, b t n! m! -> b t m! h`
        """
        return self._op("leave_streams", (streams, x, weights, matrix), name, block)

    def lightning_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        state: Value,
        /,
        *,
        chunk: int = 1,
        layers: int = 1,
        layer: int = -1,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """Lightning attention (arXiv:2401.04658): S ← λ·S + k·vᵀ, y = Sᵀq, with a constant λ = e^−slope per
        head.

        Slopes are those of ALiBi, times one minus the share of layers before this one (MiniMax-01,
        arXiv:2501.08313).

        `b t! g r d!, b t! g r d!, b t! g r e, b g r d e -> b t! g r e, b g r d e`
        """
        return self._op(
            "lightning_attention", (q, k, v, state), name, block, chunk=chunk, layers=layers, layer=layer
        )

    def linear(
        self, x: Value, *weights: Value, einsum: str, to: str = "", name: str = "", block: str | None = None
    ) -> Any:
        """x · W (+ bias), with heads and other axes spelled out: `b t h, h g r d -> b t g r d`.

        With several results it is a merged projection: the operands are x, one weight per result, then
        optionally one bias per result, and `einsum` describes all of them. The kernel dequantizes weights
        of lower precision than x. The results have the dtype `to`, by default x's dtype.
        """
        return self._op("linear", (x, *weights), name, block, einsum=einsum, to=to)

    def log_softmax_top_k(
        self, logits: Value, /, *, k: int, name: str = "", block: str | None = None
    ) -> tuple[Value, Value]:
        """The `k` largest log-probabilities of each row of logits and which they are, in one kernel.

        The softmax takes 5 FLOPs per candidate, its comparison one.

        `* e! -> * k, * k`
        """
        return self._op("log_softmax_top_k", (logits,), name, block, k=k)

    def match_rms(
        self, x: Value, y: Value, /, *, least: float = 1e-05, name: str = "", block: str | None = None
    ) -> Value:
        """x · rms(y) / rms(x), with mean squares of at least `least`; 6 FLOPs per element.

        `* h!, * h! -> * h!`
        """
        return self._op("match_rms", (x, y), name, block, least=least)

    def modulate(
        self, x: Value, scale: Value, shift: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """x · (1 + scale) + shift, with one scale and shift for all tokens of a sequence.

        `b t h, b h, b h -> b t h`
        """
        return self._op("modulate", (x, scale, shift), name, block)

    def moments(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """The sum and the sum of squares over the elements of each token; 3 FLOPs per element.

        `b t +f -> b t s`
        """
        return self._op("moments", (x,), name, block)

    def mul(self, x: Value, y: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """a · b, element by element.

        `*, * -> *`
        """
        return self._op("mul", (x, y), name, block)

    def negate_half(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """−x for the second half of each row: 2 FLOPs per element of that half, of the 6 that `rope` counts.

        `* d! -> * e`
        """
        return self._op("negate_half", (x,), name, block)

    def norm_rope_append_index(
        self,
        q: Value,
        k: Value,
        v: Value,
        k_cache: Value,
        v_cache: Value,
        q_weight: Value,
        k_weight: Value,
        index_q: Value,
        index_k: Value,
        index_cache: Value,
        index_q_weight: Value,
        index_k_weight: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        eps: float = 1e-06,
        offset: float = 0.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value, Value, Value, Value]:
        """`rope_append` of normalized q and k, and of an index's queries and keys, in one kernel.

        Operands q, k, v, key cache, value cache, the weights of the norms of q and k; index queries, index
        keys, their cache, and the weights of their norms. Results: rotated q, key cache, value cache,
        rotated index queries, cache of index keys. Each head is normalized: 4 FLOPs per element, and 6 for
        rotated elements.

        `b t! g r d!, b t! g d!, b t! g e, b p g d!, b p g e, d!, d!, b t! g y!, b t! y!, b p y!, y!, y! ->
        b t! g r d!, b (p+t) g d!, b (p+t) g e, b t! g y!, b (p+t) y!`
        """
        return self._op(
            "norm_rope_append_index",
            (
                q,
                k,
                v,
                k_cache,
                v_cache,
                q_weight,
                k_weight,
                index_q,
                index_k,
                index_cache,
                index_q_weight,
                index_k_weight,
            ),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
            eps=eps,
            offset=offset,
        )

    def pair_norm(
        self,
        q: Value,
        k: Value,
        squares: Value,
        q_weight: Value,
        k_weight: Value,
        /,
        *,
        eps: float = 1e-06,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """RMSNorm of q and k over all heads of a token, given their `squares`; 2 FLOPs per element.

        `b t g r d!, b t g d!, b t s!, g r d!, g d! -> b t g r d!, b t g d!`
        """
        return self._op("pair_norm", (q, k, squares, q_weight, k_weight), name, block, eps=eps)

    def pair_squares(self, q: Value, k: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """Σq² and Σk² of each token over all heads, which the ranks add up; 2 FLOPs per element.

        `b t g r d!, b t g d! -> b t s`
        """
        return self._op("pair_squares", (q, k), name, block)

    def patch_embedding(
        self, patches: Value, weight: Value, *bias: Value, name: str = "", block: str | None = None
    ) -> Value:
        """Each patch of p × q pixels and `c` channels times a matrix (+ bias): a convolution by whole
        patches.

        `b t c p q, c p q h -> b t h`
        """
        return self._op("patch_embedding", (patches, weight, *bias), name, block)

    def pick(self, x: Value, /, *, index: int = -1, name: str = "", block: str | None = None) -> Value:
        """One of several streams, or of a value with one part per layer: `index`, or −1 for the layer's own
        part.

        `b t [n] h -> b t h`
        """
        return self._op("pick", (x,), name, block, index=index)

    def pick_replica(
        self, chosen: Value, /, *, experts: int, places: int, name: str = "", block: str | None = None
    ) -> Value:
        """Choose one of the places of each chosen expert; `experts` experts occupy `places` places.

        Places beyond the number of experts store redundant copies. The two tables, the copies of each
        expert and their places, stay in the GPU's cache; one entry of each is read per choice.

        `b t k -> b t k`
        """
        return self._op("pick_replica", (chosen,), name, block, experts=experts, places=places)

    def place_images(
        self, x: Value, images: Value, ids: Value, /, *, token: int, name: str = "", block: str | None = None
    ) -> Value:
        """Embeddings of tokens, with image embeddings in order at the positions of the id `token`.

        Only the replaced rows are read and written.

        `b t! h, b n! h, b t! -> b t! h`
        """
        return self._op("place_images", (x, images, ids), name, block, token=token)

    def positions(
        self, x: Value, table: Value, /, *, offset: int = 0, name: str = "", block: str | None = None
    ) -> Value:
        """x, and to each token the row of a learned table for its position, counted from `offset`.

        `b t! h, [p]! h -> b t! h`
        """
        return self._op("positions", (x, table), name, block, offset=offset)

    def quantize(
        self, x: Value, /, *, to: str, static: bool = False, name: str = "", block: str | None = None
    ) -> Value:
        """x in the low-precision dtype `to`, with scales computed on the fly; 2 FLOPs per element (maximum,
        scaling).

        `static` scales come from an earlier calibration, so the kernel takes 1 FLOP (scaling). The
        interpreter uses the best scales in either case.

        `* -> *`
        """
        return self._op("quantize", (x,), name, block, to=to, static=static)

    def recv(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """Receives a value from the previous stage; reading, sending and writing overlap, as one `send`.

        `* -> *`
        """
        return self._op("recv", (x,), name, block)

    def reduce_scatter(
        self,
        x: Value,
        /,
        *,
        over: tuple[str, ...],
        dim: int,
        to: str = "",
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """partial → split along `dim` (−1: along the tokens).

        For low-precision summands, `to` is the dtype in which each rank adds its pieces. The pieces arrive
        unchanged by an exchange, which sends no more than a ring.
        """
        return self._op("reduce_scatter", (x,), name, block, over=over, dim=dim, to=to)

    def relu(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """max(x, 0).

        `* -> *`
        """
        return self._op("relu", (x,), name, block)

    def relu2(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """max(x, 0)² (arXiv:2109.08668).

        `* -> *`
        """
        return self._op("relu2", (x,), name, block)

    def reorder(self, cache: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """A cache with its sequences copied to the beams that continue them, as `index_select` does.

        The order has no effect on the cost, so the interpreter leaves each sequence in place. The next
        step uses the copy. The temporary coexistence of both caches is not counted.

        `b * -> b *`
        """
        return self._op("reorder", (cache,), name, block)

    def repeat(
        self,
        *values: Value,
        body: str,
        times: int,
        first: int | None = None,
        carried: int = 1,
        gives: tuple[Tensor, ...] = (),
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Run graph `body` `times` times: the first `carried` operands are loop-carried, the rest are
        captured.

        The last iteration returns the additional results of the body, of types `gives`. Caches of the body
        are separate for each iteration, and so are weights, except those that name a single tensor.
        `first` is the number of the first layer, counted from the start of the graph. By default it
        follows the layers before it (`Program.iterations`).
        """
        return self._op(
            "repeat",
            (*values,),
            name,
            block,
            body=body,
            times=times,
            first=first,
            carried=carried,
            gives=gives,
        )

    def return_tokens(
        self,
        sums: Value,
        weights: Value,
        /,
        *,
        over: tuple[str, ...],
        mode: str = "",
        sms: int = 20,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Return the sums of each token from the ranks of its experts to the rank of its `weights`, and add
        them.

        `mode` and `sms` are as in `send_tokens`.
        """
        return self._op("return_tokens", (sums, weights), name, block, over=over, mode=mode, sms=sms)

    def rms_norm(
        self,
        x: Value,
        *weight: Value,
        eps: float = 1e-06,
        offset: float = 0.0,
        over: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """x / rms(x) · (w + offset) over the last `over` axes; 4 FLOPs an element (square, sum, scale,
        weight).

        `w` may have additional leading axes, and is optional (3 FLOPs without it). Gemma's offset is 1.
        """
        return self._op("rms_norm", (x, *weight), name, block, eps=eps, offset=offset, over=over)

    def rms_norm_quantize(
        self,
        x: Value,
        *weight: Value,
        eps: float = 1e-06,
        offset: float = 0.0,
        over: int = 1,
        to: str = "",
        static: bool = False,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """rms_norm(x) quantized to the dtype `to`; the FLOPs of both."""
        return self._op(
            "rms_norm_quantize",
            (x, *weight),
            name,
            block,
            eps=eps,
            offset=offset,
            over=over,
            to=to,
            static=static,
        )

    def rope(
        self,
        x: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Rotary positions on the last axis; 6 FLOPs per element.

        `b t! * d! -> b t! * d!`
        """
        return self._op(
            "rope",
            (x,),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
        )

    def rope_append(
        self,
        q: Value,
        k: Value,
        v: Value,
        k_cache: Value,
        v_cache: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value, Value]:
        """Rotate q and k, and write k and v to their caches, in one kernel.

        Operands q, k, v, key cache, value cache; results rotated q, key cache, value cache.

        `b t! g r d!, b t! g d!, b t! g e, b p g d!, b p g e -> b t! g r d!, b (p+t) g d!, b (p+t) g e`
        """
        return self._op(
            "rope_append",
            (q, k, v, k_cache, v_cache),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
        )

    def row_mean(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """The mean of each row; 1 FLOP an element of x.

        `* h! -> *`
        """
        return self._op("row_mean", (x,), name, block)

    def scale(self, x: Value, /, *, factor: float, name: str = "", block: str | None = None) -> Value:
        """x · factor.

        `* -> *`
        """
        return self._op("scale", (x,), name, block, factor=factor)

    def scale_by(self, x: Value, weight: Value, /, *, name: str = "", block: str | None = None) -> Any:
        """x · w, with one number per element of a row, or one for all."""
        return self._op("scale_by", (x, weight), name, block)

    def scale_by_cosine(
        self,
        x: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """x · cos, with equal factors for both halves of a head: 2 FLOPs per element, of the 6 of `rope`.

        `b t! * d! -> b t! * d!`
        """
        return self._op(
            "scale_by_cosine",
            (x,),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
        )

    def scale_by_sine(
        self,
        x: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """x · sin, with equal factors for both halves of a head: 2 FLOPs per element, of the 6 of `rope`.

        `b t! * d! -> b t! * d!`
        """
        return self._op(
            "scale_by_sine",
            (x,),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
        )

    def scale_rows(self, x: Value, factor: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x · factor, of a number for each row; 1 FLOP an element of x.

        `* h, * -> * h`
        """
        return self._op("scale_rows", (x, factor), name, block)

    def scaled_dispatch(
        self,
        x: Value,
        chosen: Value,
        weights: Value,
        /,
        *,
        experts: int,
        over: tuple[str, ...] = (),
        routing: str = "chance",
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """`dispatch` of rows that are scaled by the token's weight for their expert before sending.

        `b t h, b t k, b t k -> (b t k) h, (b t k)`
        """
        return self._op(
            "scaled_dispatch", (x, chosen, weights), name, block, experts=experts, over=over, routing=routing
        )

    def select_blocks(
        self,
        scores: Value,
        index: Value,
        /,
        *,
        length: int,
        top_k: int,
        local: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Scores with −∞ where a key is in none of the `top_k` blocks of highest index, of `length` keys
        each.

        The last `local` blocks up to the block of a query are always selected. 1 FLOP (a comparison) for
        each candidate, and 1 for each score.

        `b g r t! c!, b g t! n! -> b g r t! c!`
        """
        return self._op(
            "select_blocks", (scores, index), name, block, length=length, top_k=top_k, local=local
        )

    def select_keys(
        self,
        scores: Value,
        index: Value,
        /,
        *,
        top_k: int,
        mask: str,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """Scores with −∞ where a key is not among the `top_k` of highest index that a query sees by `mask`.

        1 FLOP (a comparison) for each candidate, and 1 for each score.

        `b g t! c!, b t! c! -> b g t! c!`
        """
        return self._op("select_keys", (scores, index), name, block, top_k=top_k, mask=mask)

    def selective_scan(
        self,
        x: Value,
        dt: Value,
        b: Value,
        c: Value,
        a_log: Value,
        skip: Value,
        state: Value,
        /,
        *,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """Mamba's (arXiv:2312.00752, algorithm 2): h ← e^(Δ·A)·h + Δ·b·x, y = c·h + skip·x, Δ = softplus(dt).

        `b t! f, b t! f, b t! n!, b t! n!, f n!, f, b f n! -> b t! f, b f n!`
        """
        return self._op("selective_scan", (x, dt, b, c, a_log, skip, state), name, block)

    def send(self, x: Value, /, *, to: int, name: str = "", block: str | None = None) -> Value:
        """Stores a value in the memory of stage `to`: each rank sends its part to the rank with the same
        coordinates.

        `* -> *`
        """
        return self._op("send", (x,), name, block, to=to)

    def send_tokens(
        self,
        x: Value,
        *beside: Value,
        over: tuple[str, ...],
        top_k: int,
        experts: int,
        routing: str = "chance",
        mode: str = "",
        sms: int = 20,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Send the tokens of `x`, with their additional operands, once to every rank that has one of their
        experts.

        Tokens choose `top_k` of `experts` each, by the law `routing`. The first dimension of the result
        counts received tokens; the second is 1. `mode` is the mode of DeepEP's kernels, normal or
        low_latency, if it is known. `sms` is the number of multiprocessors for the kernels of normal mode.
        """
        return self._op(
            "send_tokens",
            (x, *beside),
            name,
            block,
            over=over,
            top_k=top_k,
            experts=experts,
            routing=routing,
            mode=mode,
            sms=sms,
        )

    def sequence_mul(self, x: Value, factor: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x · factor, with one factor for all tokens of a sequence.

        `b t h, b h -> b t h`
        """
        return self._op("sequence_mul", (x, factor), name, block)

    def shift(self, x: Value, /, *, amount: float, name: str = "", block: str | None = None) -> Value:
        """x + amount.

        `* -> *`
        """
        return self._op("shift", (x,), name, block, amount=amount)

    def sigmoid(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """1 / (1 + e^−x).

        `* -> *`
        """
        return self._op("sigmoid", (x,), name, block)

    def sigmoid_mul(self, x: Value, gate: Value, /, *, name: str = "", block: str | None = None) -> Any:
        """x · sigmoid(gate), of one number for each element of x or for each row."""
        return self._op("sigmoid_mul", (x, gate), name, block)

    def sigmoid_top_k(
        self,
        x: Value,
        *bias: Value,
        k: int,
        normalize: bool = False,
        groups: int = 1,
        kept: int = 1,
        best: int = 1,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """sigmoid and top-k in one kernel; the sigmoid takes 4 FLOPs per candidate.

        Attributes and bias are those of `top_k`.

        `b t e! -> b t k, b t k`
        """
        return self._op(
            "sigmoid_top_k",
            (x, *bias),
            name,
            block,
            k=k,
            normalize=normalize,
            groups=groups,
            kept=kept,
            best=best,
            scale=scale,
        )

    def silu(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x · sigmoid(x).

        `* -> *`
        """
        return self._op("silu", (x,), name, block)

    def silu_mul(self, gate: Value, up: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """silu(gate) · up in one pass over memory.

        `*, * -> *`
        """
        return self._op("silu_mul", (gate, up), name, block)

    def sinusoid(
        self, timestep: Value, /, *, elements: int, name: str = "", block: str | None = None
    ) -> Value:
        """Cosines, then sines, of a timestep times `elements`/2 frequencies from 1 to 1/10,000; 2 FLOPs each.

        `b -> b f`
        """
        return self._op("sinusoid", (timestep,), name, block, elements=elements)

    def slice(
        self, x: Value, /, *, over: tuple[str, ...], dim: int, name: str = "", block: str | None = None
    ) -> Value:
        """replicated → split along `dim` (−1: along the tokens): each rank retains its piece."""
        return self._op("slice", (x,), name, block, over=over, dim=dim)

    def soft_cap(self, x: Value, /, *, cap: float, name: str = "", block: str | None = None) -> Value:
        """cap · tanh(x / cap) (arXiv:2408.00118, section 2).

        `* -> *`
        """
        return self._op("soft_cap", (x,), name, block, cap=cap)

    def softmax(self, x: Value, *sinks: Value, name: str = "", block: str | None = None) -> Any:
        """Softmax over the last axis; 5 FLOPs per element (max, subtract, exp, sum, divide).

        With attention scores, `sinks` are one additional element of each row per head. It contributes to
        the sum but not to the result (arXiv:2309.17453, learned as in gpt-oss).
        """
        return self._op("softmax", (x, *sinks), name, block)

    def softmax_top_k(
        self,
        x: Value,
        *bias: Value,
        k: int,
        normalize: bool = False,
        groups: int = 1,
        kept: int = 1,
        best: int = 1,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """softmax and top-k in one kernel, as in engines; the softmax takes 5 FLOPs per candidate.

        Attributes and bias are those of `top_k`.

        `b t e! -> b t k, b t k`
        """
        return self._op(
            "softmax_top_k",
            (x, *bias),
            name,
            block,
            k=k,
            normalize=normalize,
            groups=groups,
            kept=kept,
            best=best,
            scale=scale,
        )

    def sparse_latent_attention(
        self,
        q: Value,
        q_rope: Value,
        k: Value,
        k_rope: Value,
        *v_and_index: Value,
        mask: str,
        scale: float = 1.0,
        top_k: int,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """Latent attention of each query over the `top_k` keys that an index selects among those its mask
        allows.

        The index is the last operand. The op selects its largest values, with one comparison per
        candidate.
        """
        return self._op(
            "sparse_latent_attention",
            (q, q_rope, k, k_rope, *v_and_index),
            name,
            block,
            mask=mask,
            scale=scale,
            top_k=top_k,
        )

    def sparse_mixer(
        self, x: Value, /, *, jitter: float, name: str = "", block: str | None = None
    ) -> tuple[Value, Value]:
        """Choose two experts in sequence, as in Phi-3.5-MoE (arXiv:2409.12136, at inference).

        The weight of each is a softmax over the remaining candidates whose distance from the largest
        score, relative to the larger magnitude, is at most 2·jitter.

        `b t e! -> b t k, b t k`
        """
        return self._op("sparse_mixer", (x,), name, block, jitter=jitter)

    def split_streams(self, x: Value, /, *, streams: int, name: str = "", block: str | None = None) -> Value:
        """Copy x to `streams` streams.

        `b t h -> b t n h`
        """
        return self._op("split_streams", (x,), name, block, streams=streams)

    def sqrt_softplus(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """√ln(1 + e^x), the score of experts in DeepSeek-V4.

        `* -> *`
        """
        return self._op("sqrt_softplus", (x,), name, block)

    def sqrt_softplus_top_k(
        self,
        x: Value,
        *bias: Value,
        k: int,
        normalize: bool = False,
        groups: int = 1,
        kept: int = 1,
        best: int = 1,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """√softplus and top-k in one kernel; the score takes 6 FLOPs per candidate.

        Attributes and bias are those of `top_k`.

        `b t e! -> b t k, b t k`
        """
        return self._op(
            "sqrt_softplus_top_k",
            (x, *bias),
            name,
            block,
            k=k,
            normalize=normalize,
            groups=groups,
            kept=kept,
            best=best,
            scale=scale,
        )

    def square(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """x².

        `* -> *`
        """
        return self._op("square", (x,), name, block)

    def square_sum(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """Σx² over the heads of a group, which the ranks of the group add up; 2 FLOPs per element.

        `b t g r d! -> b t g`
        """
        return self._op("square_sum", (x,), name, block)

    def ssd_scan(
        self,
        x: Value,
        dt: Value,
        b: Value,
        c: Value,
        a_log: Value,
        dt_bias: Value,
        skip: Value,
        state: Value,
        /,
        *,
        chunk: int = 1,
        least: float = 0.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """Mamba-2's (arXiv:2405.21060, section 6): h ← e^(−Δ·e^a)·h + Δ·x·bᵀ, y = h·c + skip·x.

        Δ is softplus(dt + dt_bias), limited to at least `least`, and a is one number per head.

        `b t! g r d, b t! g r, b t! g n!, b t! g n!, g r, g r, g r, b g r d n! -> b t! g r d, b g r d n!`
        """
        return self._op(
            "ssd_scan", (x, dt, b, c, a_log, dt_bias, skip, state), name, block, chunk=chunk, least=least
        )

    def stack(self, *values: Value, name: str = "", block: str | None = None) -> Any:
        """Stack the operands along a new axis before the last one."""
        return self._op("stack", (*values,), name, block)

    def stream_add(
        self,
        streams: Value,
        x: Value,
        *weights: Value,
        first: int = 0,
        offset: float = 0.0,
        name: str = "",
        block: str | None = None,
    ) -> Any:
        """x added to the streams from `first` on, to each with its weight and `offset`, or unscaled."""
        return self._op("stream_add", (streams, x, *weights), name, block, first=first, offset=offset)

    def stream_mix(
        self, streams: Value, weights: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """Each stream as a sum of all, weighted token by token.

        `b t n h, b t m n -> b t m h`
        """
        return self._op("stream_mix", (streams, weights), name, block)

    def subtract(self, x: Value, y: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """a − b.

        `*, * -> *`
        """
        return self._op("subtract", (x, y), name, block)

    def sum_experts(
        self,
        rows: Value,
        weights: Value,
        /,
        *,
        over: tuple[str, ...] = (),
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """`combine` of rows that were weighted before the experts; the weights only give the placement of
        tokens.

        `(b t k) h, b t k -> b t h`
        """
        return self._op("sum_experts", (rows, weights), name, block, over=over)

    def tanh(self, x: Value, /, *, name: str = "", block: str | None = None) -> Value:
        """The hyperbolic tangent.

        `* -> *`
        """
        return self._op("tanh", (x,), name, block)

    def temper(
        self,
        x: Value,
        /,
        *,
        beta: float,
        length: float,
        shift: float = 0.0,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """x · (1 + beta · ln(1 + ⌊(position + shift) / length⌋)): late queries sharper (Llama 4, Ministral
        3).

        `b t! * -> b t! *`
        """
        return self._op("temper", (x,), name, block, beta=beta, length=length, shift=shift)

    def top_k(
        self,
        x: Value,
        *bias: Value,
        k: int,
        normalize: bool = False,
        groups: int = 1,
        kept: int = 1,
        best: int = 1,
        scale: float = 1.0,
        name: str = "",
        block: str | None = None,
    ) -> tuple[Value, Value]:
        """The `k` largest values of each row and their indices; 1 FLOP (a comparison) per candidate.

        A bias, if there is one, affects only the choice (arXiv:2408.15664). With `groups` of neighbors,
        candidates come from the `kept` groups with the largest sum of their `best` values
        (arXiv:2405.04434, 2412.19437). With `normalize`, the chosen values are divided by their sum. They
        are then multiplied by `scale`.

        `b t e! -> b t k, b t k`
        """
        return self._op(
            "top_k",
            (x, *bias),
            name,
            block,
            k=k,
            normalize=normalize,
            groups=groups,
            kept=kept,
            best=best,
            scale=scale,
        )

    def unrope(
        self,
        x: Value,
        /,
        *,
        theta: float = 10000.0,
        scaling: str = "none",
        factors: tuple[float, ...] = (),
        size: int = 0,
        interleaved: bool = False,
        last: bool = False,
        stride: int = 1,
        name: str = "",
        block: str | None = None,
    ) -> Value:
        """The inverse of `rope`: removes the query's position from a mean of rotated values.

        `b t! * d! -> b t! * d!`
        """
        return self._op(
            "unrope",
            (x,),
            name,
            block,
            theta=theta,
            scaling=scaling,
            factors=factors,
            size=size,
            interleaved=interleaved,
            last=last,
            stride=stride,
        )

    def xielu(
        self, x: Value, positive: Value, negative: Value, /, *, name: str = "", block: str | None = None
    ) -> Value:
        """αp·x² + x/2 where x is above 0, else αn·(e^min(x, −10⁻⁶) − 1 − x) + x/2 (arXiv:2411.13010).

        αp is softplus of the first parameter, and αn is 1/2 plus softplus of the second. The longer branch
        has 6 FLOPs.

        `*, a!, a! -> *`
        """
        return self._op("xielu", (x, positive, negative), name, block)

    def zeros(
        self, x: Value, /, *, over: tuple[str, ...] = (), name: str = "", block: str | None = None
    ) -> Value:
        """Zeros in the shape of x, which is not read: the summand of the first residual.

        It may be a partial sum over the mesh axes `over`. No kernel writes the zeros; an engine's first
        layer skips the addition.

        `* -> *`
        """
        return self._op("zeros", (x,), name, block, over=over)


# which module defines an op, so that no other is imported
MODULES = {
    "add": "llmir.ir.ops.elementwise",
    "add_rms_norm": "llmir.ir.ops.norm",
    "add_rms_norm_quantize": "llmir.ir.ops.norm",
    "all_gather": "llmir.ir.ops.collective",
    "all_reduce": "llmir.ir.ops.collective",
    "all_reduce_add_rms_norm": "llmir.ir.ops.norm",
    "all_reduce_add_rms_norm_quantize": "llmir.ir.ops.norm",
    "all_to_all": "llmir.ir.ops.collective",
    "append": "llmir.ir.ops.rope",
    "append_row": "llmir.ir.ops.images",
    "attention_mask": "llmir.ir.ops.attention",
    "attention_mix": "llmir.ir.ops.attention",
    "attention_scores": "llmir.ir.ops.attention",
    "block_scores": "llmir.ir.ops.sparse_attention",
    "block_sparse_attention": "llmir.ir.ops.sparse_attention",
    "cast": "llmir.ir.ops.elementwise",
    "causal_conv": "llmir.ir.ops.scan",
    "causal_conv_silu": "llmir.ir.ops.scan",
    "clamped_glu": "llmir.ir.ops.elementwise",
    "clip": "llmir.ir.ops.elementwise",
    "combine": "llmir.ir.ops.moe",
    "compress": "llmir.ir.ops.quant",
    "compress_rows": "llmir.ir.ops.sparse_attention",
    "compressed_attention": "llmir.ir.ops.sparse_attention",
    "concat": "llmir.ir.ops.sources",
    "cut": "llmir.ir.ops.gather",
    "decay_gate": "llmir.ir.ops.delta",
    "decompress": "llmir.ir.ops.quant",
    "dequantize": "llmir.ir.ops.quant",
    "dispatch": "llmir.ir.ops.moe",
    "embedding": "llmir.ir.ops.gather",
    "enter_streams": "llmir.ir.ops.residual_streams",
    "expert_scale": "llmir.ir.ops.top_k",
    "flash_attention": "llmir.ir.ops.attention",
    "gated_delta": "llmir.ir.ops.delta",
    "gaussian_top": "llmir.ir.ops.elementwise",
    "gelu": "llmir.ir.ops.elementwise",
    "gelu_mul": "llmir.ir.ops.elementwise",
    "gelu_tanh": "llmir.ir.ops.elementwise",
    "gelu_tanh_mul": "llmir.ir.ops.elementwise",
    "group_norm": "llmir.ir.ops.norm",
    "grouped_linear": "llmir.ir.ops.moe",
    "hash_top_k": "llmir.ir.ops.top_k",
    "index_scores": "llmir.ir.ops.latent_attention",
    "inverse_root": "llmir.ir.ops.norm",
    "join_half": "llmir.ir.ops.rope",
    "join_streams": "llmir.ir.ops.residual_streams",
    "key_decay_gate": "llmir.ir.ops.delta",
    "l2_norm": "llmir.ir.ops.delta",
    "last_token": "llmir.ir.ops.gather",
    "last_tokens": "llmir.ir.ops.gather",
    "latent_attention": "llmir.ir.ops.latent_attention",
    "latent_mix": "llmir.ir.ops.latent_attention",
    "latent_scores": "llmir.ir.ops.latent_attention",
    "layer_embedding": "llmir.ir.ops.gather",
    "layer_norm": "llmir.ir.ops.norm",
    "leave_streams": "llmir.ir.ops.residual_streams",
    "lightning_attention": "llmir.ir.ops.delta",
    "linear": "llmir.ir.ops.linear",
    "log_softmax_top_k": "llmir.ir.ops.beam_search",
    "match_rms": "llmir.ir.ops.norm",
    "modulate": "llmir.ir.ops.norm",
    "moments": "llmir.ir.ops.elementwise",
    "mul": "llmir.ir.ops.elementwise",
    "negate_half": "llmir.ir.ops.rope",
    "norm_rope_append_index": "llmir.ir.ops.rope",
    "pair_norm": "llmir.ir.ops.norm",
    "pair_squares": "llmir.ir.ops.norm",
    "patch_embedding": "llmir.ir.ops.images",
    "pick": "llmir.ir.ops.residual_streams",
    "pick_replica": "llmir.ir.ops.top_k",
    "place_images": "llmir.ir.ops.images",
    "positions": "llmir.ir.ops.gather",
    "quantize": "llmir.ir.ops.quant",
    "recv": "llmir.ir.ops.pipeline_stage",
    "reduce_scatter": "llmir.ir.ops.collective",
    "relu": "llmir.ir.ops.elementwise",
    "relu2": "llmir.ir.ops.elementwise",
    "reorder": "llmir.ir.ops.beam_search",
    "repeat": "llmir.ir.ops.region",
    "return_tokens": "llmir.ir.ops.expert_exchange",
    "rms_norm": "llmir.ir.ops.norm",
    "rms_norm_quantize": "llmir.ir.ops.norm",
    "rope": "llmir.ir.ops.rope",
    "rope_append": "llmir.ir.ops.rope",
    "row_mean": "llmir.ir.ops.norm",
    "scale": "llmir.ir.ops.elementwise",
    "scale_by": "llmir.ir.ops.residual_streams",
    "scale_by_cosine": "llmir.ir.ops.rope",
    "scale_by_sine": "llmir.ir.ops.rope",
    "scale_rows": "llmir.ir.ops.norm",
    "scaled_dispatch": "llmir.ir.ops.moe",
    "select_blocks": "llmir.ir.ops.sparse_attention",
    "select_keys": "llmir.ir.ops.latent_attention",
    "selective_scan": "llmir.ir.ops.scan",
    "send": "llmir.ir.ops.pipeline_stage",
    "send_tokens": "llmir.ir.ops.expert_exchange",
    "sequence_mul": "llmir.ir.ops.norm",
    "shift": "llmir.ir.ops.norm",
    "sigmoid": "llmir.ir.ops.elementwise",
    "sigmoid_mul": "llmir.ir.ops.elementwise",
    "sigmoid_top_k": "llmir.ir.ops.top_k",
    "silu": "llmir.ir.ops.elementwise",
    "silu_mul": "llmir.ir.ops.elementwise",
    "sinusoid": "llmir.ir.ops.norm",
    "slice": "llmir.ir.ops.collective",
    "soft_cap": "llmir.ir.ops.elementwise",
    "softmax": "llmir.ir.ops.norm",
    "softmax_top_k": "llmir.ir.ops.top_k",
    "sparse_latent_attention": "llmir.ir.ops.latent_attention",
    "sparse_mixer": "llmir.ir.ops.top_k",
    "split_streams": "llmir.ir.ops.residual_streams",
    "sqrt_softplus": "llmir.ir.ops.elementwise",
    "sqrt_softplus_top_k": "llmir.ir.ops.top_k",
    "square": "llmir.ir.ops.norm",
    "square_sum": "llmir.ir.ops.norm",
    "ssd_scan": "llmir.ir.ops.scan",
    "stack": "llmir.ir.ops.gather",
    "stream_add": "llmir.ir.ops.residual_streams",
    "stream_mix": "llmir.ir.ops.residual_streams",
    "subtract": "llmir.ir.ops.elementwise",
    "sum_experts": "llmir.ir.ops.moe",
    "tanh": "llmir.ir.ops.elementwise",
    "temper": "llmir.ir.ops.rope",
    "top_k": "llmir.ir.ops.top_k",
    "unrope": "llmir.ir.ops.rope",
    "xielu": "llmir.ir.ops.elementwise",
    "zeros": "llmir.ir.ops.sources",
}
