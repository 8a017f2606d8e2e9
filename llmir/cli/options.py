"""Options that several commands share.

The kinds of values that options take: read from text, and checked as the API checks them, in its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmir.base.errors import InputError
from llmir.ir.core.dispatch_modes import FORMS

if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # not generic before click 8.3

_UNITS = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}iB": 1024**_power}
_SIZE = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_value(text: str) -> Any:
    """The value that a text spells."""
    from llmir.base.arguments import parse_field  # here and below: help needs no numpy

    return parse_field(text.strip())


class Count(_Kind):
    """An integer from 1 up."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`InputError` that begins with the option, for what it does not take."""
        name = param.opts[-1] if param else self.name
        return self.check(name, self.read(name, value) if isinstance(value, str) else value)

    def read(self, name: str, text: str) -> Any:
        """What is said; `InputError` for what cannot be read."""
        return parse_value(text)

    def check(self, name: str, value: Any) -> Any:
        """The value as the API takes it."""
        from llmir.base.arguments import integer

        return integer(name, value, 1)


class Integer(Count):
    """An integer from `least` to `most` in any spelling, 1e5 too; None is no bound of its own."""

    def __init__(self, least: int | None = 1, most: int | None = None) -> None:
        self.least, self.most = least, most

    def check(self, name: str, value: Any) -> Any:
        """An int."""
        from llmir.base.arguments import MOST, integer

        whole = isinstance(value, float) and value.is_integer()
        least = -MOST if self.least is None else self.least
        most = MOST if self.most is None else self.most
        return integer(name, int(value) if whole else value, least, most)


class Number(Count):
    """A number above 0, or from `least` to `most`."""

    def __init__(self, name: str, least: float | None = None, most: float = float("inf")) -> None:
        self.name, self.least, self.most = name, least, most

    def check(self, name: str, value: Any) -> float:
        """A float."""
        from llmir.base.arguments import number

        return number(name, value, self.least or 0.0, self.most, above=self.least is None)


_BARE = re.compile(r"(?:[a-z][a-z0-9.]*:)?\d{1,30}(?:\.\d{1,30})?", re.ASCII)


def parse_limit(text: str) -> str:
    """A limit as the API takes it: a bare number is milliseconds, `p50:30` too."""
    return f"{text.strip()}ms" if _BARE.fullmatch(text.strip()) else text


class Milliseconds(Number):
    """A time above 0: a number is milliseconds, or it has a unit, such as `1s`."""

    def __init__(self) -> None:
        super().__init__("MS")

    def read(self, name: str, text: str) -> Any:
        """Milliseconds."""
        if text.strip().endswith("s"):
            from llmir.api.capacity import limit_seconds

            return (limit_seconds(name, text) or 0.0) * 1e3
        return parse_value(text)


class Field(Count):
    """What a field of a class of the API is declared to be; the class is imported when it is needed."""

    def __init__(self, kind: Callable[[], type], field: str, name: str = "N") -> None:
        self.kind, self.field, self.name = kind, field, name

    def check(self, name: str, value: Any) -> Any:
        """As the class checks it."""
        from llmir.base.arguments import check_field

        (field,) = (f for f in fields(self.kind()) if f.name == self.field)
        return check_field(name, value, field.type, field.metadata, InputError)


class Bytes(Field):
    """An amount of memory such as `2GiB` or `500MB`; a bare number is bytes."""

    def read(self, name: str, text: str) -> int:
        """Bytes, without a fraction."""
        found = _SIZE.fullmatch(text.strip())
        scale = {u.lower(): f for u, f in _UNITS.items()}.get((found[2] or "B").lower()) if found else None
        if not found or not scale:
            expected = f"a size such as 2GiB (units {', '.join(_UNITS)})"
            raise InputError(f"{name}: expected {expected}, got {text[:40]!r}")
        return int(Decimal(found[1]) * scale)


class Stages(Field):
    """How many pipeline stages, or the layers of each: `4`, `30,32,32,32`."""

    def read(self, name: str, text: str) -> tuple[Any, ...]:
        """What stands between the commas."""
        return tuple(map(parse_value, text.split(",")))

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        """Integers from 1 up."""
        return tuple(super(Stages, self).check(name, part) for part in value)


class Shares(Count):
    """`compute=0.7,memory=0.8`: numbers by name."""

    name = "SHARES"
    such_as = "shares such as compute=0.7,memory=0.8"

    def read(self, name: str, text: str) -> dict[str, Any]:
        """What is said of each name."""
        pairs = [[p.strip() for p in part.partition("=")] for part in text.split(",")]
        found = {key: parse_value(value) for key, _, value in pairs}
        if len(found) != len(pairs) or not all(key and value for key, _, value in pairs):
            raise InputError(f"{name}: expected {self.such_as}, got {text[:60]!r}")
        return found

    def check(self, name: str, value: Any) -> Any:
        """The cost model knows which names there are, and checks each number."""
        return value


class Prices(Shares):
    """`h200=3.5,b200=6`: USD an hour by device, which `hw.priced` checks."""

    name = "DEVICE=USD,…"
    such_as = "USD an hour by device, such as h200=3.5"


def of_pass(name: str, option: str, kind: type[Field] = Field, shown: str = "N") -> Field:
    """What an option of a pass takes."""

    def find() -> Any:
        from llmir.ir.tools.pipeline import PASSES

        return PASSES[name]

    return kind(find, option, shown)


def of_workload(field: str, kind: type[Field] = Field, shown: str = "N") -> Field:
    """What a field of a workload takes."""

    def find() -> type:
        from llmir.backends.request.workload import Workload

        return Workload

    return kind(find, field, shown)


Function = TypeVar("Function", bound=Callable[..., Any])


def _stack(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _renamed(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """`InputError` for a file of precisions under its old option."""
    if value is not None:
        raise InputError(f"--plan: is --precision {value} now; `llmir plan` searches for plans")


model = _stack(
    click.argument("model", metavar="MODEL"),
    click.option("--lenient", is_flag=True, help="Only note config fields that llmir does not model."),
)

speculation = _stack(
    click.option(
        "--draft-tokens", type=Count(), help="Tokens drafted for each sequence; a step verifies them at once."
    ),
    click.option(
        "--acceptance",
        type=Number("SHARE", least=0.0, most=1.0),
        help="The chance that a draft is right, whatever came before it.",
    ),
    click.option(
        "--draft-model",
        metavar="MODEL",
        help="The model that drafts them, a token a step.  [default: --draft's layer; else nothing]",
    ),
)


class Beams(Count):
    """Sequences that a request decodes."""

    def check(self, name: str, value: Any) -> int:
        """As the API checks it."""
        from llmir.base.arguments import integer
        from llmir.ir.ops.beam_search import MOST

        return integer(name, value, 1, MOST)


beams = click.option(
    "--beams", type=Beams(), help="Sequences that each request decodes by beam search, after one prompt."
)

sides = _stack(
    click.argument("other", metavar="[MODEL2]", required=False),
    click.option(
        "--before", metavar="PASSES", help="Passes on the first side; '' for none, as eager code runs."
    ),
    click.option("--after", metavar="PASSES", help="Passes on the other side."),
    click.option(
        "--pass", "step", metavar="PASS", help="Instead of both: the default up to this pass, and with it."
    ),
    click.option("--hw-after", metavar="DEVICE", help="Another device or cluster on the other side."),
    click.option("--engine-after", metavar="NAME[@VERSION]", help="Another engine on the other side."),
)

draft = click.option(
    "--draft",
    is_flag=True,
    help="The layer that predicts further tokens too, as a phase that drafts; --logits all verifies.",
)

phase = click.option(
    "--phase",
    type=click.Choice(["encode", "prefill", "decode", "draft", "both"]),
    default="both",
    show_default=True,
    help="The step; both are all that there are.",
)

logits = click.option(
    "--logits",
    type=click.Choice(["last", "all"]),
    help="Positions that lm_head runs on: all verify drafts, as k + 1 new tokens.  [default: last]",
)

precision = _stack(
    click.option(
        "--weights",
        metavar="DTYPE",
        help="Weights: fp32, tf32, bf16, fp16, fp8, fp8_e5m2, fp8_b128x128, int8, int4, int4_g32, nvfp4, "
        "mxfp4 or nf4. Narrow ones leave lm_head, router, norms and embeddings as they are.",
    ),
    click.option(
        "--activations",
        metavar="DTYPE",
        help="Inputs of matrix products: fp8, fp8_e5m2, int8, nvfp4, mxfp4, or a wide type for all.",
    ),
    click.option("--kv", metavar="DTYPE", help="The KV cache: fp8, fp8_e5m2, int8, bf16, fp16 or fp32."),
    click.option(
        "--collectives",
        metavar="DTYPE",
        help="What ranks send each other: fp8, fp8_e5m2, int8, int4, bf16, fp16 or fp32. Narrow ones leave "
        "those of lm_head, router and embedding.",
    ),
    click.option(
        "--precision",
        "plan",
        metavar="FILE",
        help="YAML of modules (or patterns with *) and their dtypes: of weights, or of each role by name.",
    ),
    click.option("--plan", "old_file", metavar="FILE", hidden=True, expose_value=False, callback=_renamed),
)

lowering = _stack(
    precision,
    click.option(
        "--attention",
        type=click.Choice(["flash", "eager"]),
        default="flash",
        show_default=True,
        help="flash fuses the attention core; eager writes the scores to memory.",
    ),
    click.option(
        "--mla",
        type=click.Choice(["auto", "naive", "absorbed"]),
        help="Latent attention over keys expanded from the latents (naive) or the latents (absorbed); "
        "auto, as engines do: naive in prefill, absorbed in decode.",
    ),
    click.option(
        "-p",
        "--pipeline",
        metavar="PASSES",
        help="Passes to run instead, such as 'fuse-attention,fuse' or ./mine.py:function; '' for none.",
    ),
    logits,
)

parallel = _stack(
    click.option("--tp", type=of_pass("shard", "tp"), default=1, help="Tensor-parallel ranks.  [default: 1]"),
    click.option(
        "--pp",
        type=of_pass("stages", "pp", Stages, "N[,N…]"),
        default="1",
        help="Pipeline stages, or the layers of each, such as 30,32,32,32.  [default: 1]",
    ),
    click.option(
        "--micro-batches",
        type=of_pass("stages", "micro_batches"),
        default=1,
        help="Equal parts of --batch that go through the stages.",
    ),
    click.option(
        "--dp",
        type=of_pass("shard", "dp"),
        default=1,
        help="Data-parallel ranks; --batch is over all of them.",
    ),
    click.option(
        "--ep", type=of_pass("shard", "ep"), default=1, help="Expert-parallel ranks; divides dp·tp."
    ),
    click.option(
        "--dispatch",
        type=click.Choice(FORMS),
        help="How tokens come to experts of other ranks: a row for each expert, once to each rank (DeepEP), "
        "or all to all ranks.  [default: the engine's]",
    ),
    click.option(
        "--redundant-experts",
        type=of_pass("shard", "redundant"),
        default=0,
        help="Copies of the busiest experts on ranks of --ep, as EPLB lays them out.  [default: 0]",
    ),
    click.option("--sp", is_flag=True, help="Sequence parallelism over the tensor-parallel ranks."),
    click.option(
        "--routing",
        metavar="LAW",
        help="How tokens choose experts: at random (chance), dealt out (even), by popularity (zipf:skew) …; "
        "the busiest rank is priced.  [default: chance]",
    ),
    click.option(
        "--routing-skew",
        type=of_pass("route", "skew", shown="SKEW"),
        help="The same as --routing zipf:skew: popularity falls as rank^-skew; 0 is chance.",
    ),
)

hardware = _stack(
    click.option("--hw", metavar="DEVICE", help="A device, or a YAML file.  [default: h100-sxm]"),
    click.option("--cluster", metavar="NAME", help="Instead: a cluster, or a YAML file of one."),
    click.option(
        "--network",
        metavar="RATE[,LATENCY]",
        help="What joins nodes, such as 25GBps,5us: of one device, each way and a hop.",
    ),
)

price_option = click.option(
    "--price",
    type=Prices(),
    metavar="DEVICE=USD,…",
    help="What an hour of a device costs, such as h200=3.5,b200=6.  [default: its list price, if known]",
)

cost_options = _stack(
    click.option(
        "--cost",
        metavar="NAME",
        help="Cost model: ideal (the roofline), calibrated (measured kernels), or a plugin's.  "
        "[default: calibrated where there are kernels]",
    ),
    click.option(
        "--engine",
        metavar="NAME[@VERSION]",
        help="Engine whose kernels, host and memory are priced: vllm, sglang, trtllm …; a release such as "
        "vllm@0.12, else the newest that was measured.",
    ),
    click.option(
        "--efficiency",
        type=Shares(),
        metavar="SHARES",
        help="Instead: shares of the roofline's rates that are reached, such as compute=0.7,memory=0.8, of "
        "links by name (nvlink=…, pcie=…; network=… between nodes), and launch=… in seconds.",
    ),
)

workload = _stack(
    hardware,
    click.option(
        "--batch",
        type=of_workload("batch"),
        default=1,
        show_default=True,
        help="Sequences in a step, or images.",
    ),
    click.option(
        "--prompt",
        type=of_workload("prompt"),
        help="Prompt tokens of each sequence.  [default: 2048]",
    ),
    click.option(
        "--generate",
        type=of_workload("generate"),
        help="Generated tokens of each sequence.  [default: 128]",
    ),
    click.option(
        "--image-tokens",
        type=of_pass("place-images", "tokens"),
        help="Tokens of images in each prompt, beside --prompt, which the model's tower encodes.  "
        "[default: none]",
    ),
    click.option(
        "--layer-tokens",
        metavar="NxLAYERS,…",
        help="Tokens of the prompt that each layer sees, such as 1024x4,512x4,256x16; says the prompt too.  "
        "[default: all]",
    ),
    cost_options,
)

prefill_options = _stack(
    click.option(
        "--chunk",
        type=of_workload("chunk", shown="N|all"),
        help="Tokens of a step that reads prompts, at most, on each data-parallel rank; all of them in one "
        "step.  [default: the engine's; all without one]",
    ),
    click.option(
        "--cached",
        type=of_workload("cached"),
        default=0,
        help="Tokens of each prompt that are in the cache already.  [default: 0]",
    ),
)

serving = _stack(
    click.option(
        "--concurrency",
        type=of_workload("batch"),
        help="In place of --batch: users in a closed loop, each of whom asks again when answered.",
    ),
    prefill_options,
)

MEMORY = (
    *("memory_utilization", "reserve", "cache_policy"),
    *("max_model_len", "max_num_seqs", "max_batched_tokens"),
)

limits = _stack(
    click.option(
        "--memory-utilization",
        type=of_workload("memory_utilization", shown="SHARE"),
        help="Share of the device's memory that may be used, by the engine's rule.  [default: the engine's; "
        "0.9 without one]",
    ),
    click.option(
        "--max-model-len",
        type=of_workload("max_model_len"),
        help="Tokens of the longest request that memory is counted for.  [default: prompt and answer]",
    ),
    click.option(
        "--max-num-seqs",
        type=of_workload("max_num_seqs"),
        help="Sequences that the engine runs at once, of each data-parallel rank.  [default: the engine's, "
        "or as many as there are]",
    ),
    click.option(
        "--max-batched-tokens",
        type=of_workload("max_batched_tokens"),
        help="Tokens of a step that memory for activations is set aside for, and that reads prompts unless "
        "--chunk says fewer.  [default: --chunk, else the engine's]",
    ),
    click.option(
        "--reserve",
        type=of_workload("reserve_bytes", Bytes, "SIZE"),
        default=0,
        help="Kept free of the memory that may be used, such as 2GiB or 500MB.  [default: 0]",
    ),
)

memory = _stack(
    limits,
    click.option(
        "--cache-policy",
        type=click.Choice(["exact", "paged", "unified"]),
        default="exact",
        show_default=True,
        help="What is reserved for caches: their bytes; pages of 16 tokens, each kind of layer apart; or "
        "equal pages for all layers, where windows keep all tokens.",
    ),
)


def output(what: str) -> Callable[[Function], Function]:
    """`-o FILE`."""
    return click.option("-o", "--output", "output_file", metavar="FILE", help=what)


def form(*choices: str) -> Callable[[Function], Function]:
    """`--format`, one of `choices`, or of those that plugins add: `output.choose` knows."""
    known = "|".join(choices)
    return click.option("--format", "form", metavar=f"[{known}]", help=f"Default: {choices[0]}.")


max_size = click.option(
    "--max-size",
    type=of_workload("reserve_bytes", Bytes, "SIZE"),
    help="The largest file of a page, such as 8MB.  [default: 5MB]",
)
