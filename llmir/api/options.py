"""The options of llmir: each is declared once, as a field of a frozen record.

A field declares the name, type, range, unit, default and help of its option. The command line, the axes of
`sweep`, the page server and the Python functions share the declaration. Python functions take whole records,
as in `llmir.workload(model, "h100-sxm", memory=llmir.Memory(max_num_seqs=64))`. `Requests`, `Lowering`,
`DiffSides` and `Output` declare options that Python functions take as plain arguments.

`llmir COMMAND --help` imports this module, so its top level imports neither numpy nor a frontend or backend.
The pass or `Workload` that declares the range is imported when a value is first checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

from llmir.base.errors import InputError
from llmir.ir.core.dispatch_modes import FORMS

if TYPE_CHECKING:
    from dataclasses import dataclass

    from llmir.backends.cost.models import CostModel
    from llmir.ir.core.program import Program

else:

    def dataclass(frozen):
        """Mark a record for type checkers. `Record` defines its methods in a tenth of the time."""
        return lambda record: record


Plan = Mapping[str, Mapping[str, str]]  # dtypes by module and role, as in a file of `--precision`
Kind = TypeVar("Kind", bound="Record")

WORKLOAD = "workload"  # the source of ranges that `Workload` declares
REQUESTS = 10_000_000  # the most requests of a simulation, which limits its memory


class Option(NamedTuple):
    """The declaration of an option: a field of a record.

    - `kind`: The check of values, a key of `_CHECKS`. The default check uses type and range.
    - `unit`: A suffix of `name` that the command line omits, such as `s` of `timeout_s`.
    - `shown`: The default as the help shows it.
    - `metavar`, `list_metavar`: The placeholders of a value, and of a list of values (an axis).
    - `flags`: The flags of the command line. The default is `--name`.
    - `source`: The pass, or `workload`, and the field that declare the range.
    - `limits`: The range without a source: `least`, `most`, `above` or `choices`.
    """

    record: str
    name: str
    type: str
    default: Any
    help: str
    kind: str = ""
    unit: str = ""
    shown: str = ""
    metavar: str = ""
    list_metavar: str = ""
    flags: tuple[str, ...] = ()
    source: tuple[str, str] | None = None
    limits: Mapping[str, Any] = {}

    @property
    def key(self) -> str:
        """The name on the command line, with `_` for `-`."""
        return self.name.removesuffix(f"_{self.unit}") if self.unit else self.name

    def is_default(self, value: Any) -> bool:
        """Whether a value is the default; a value of another type, such as an array, is not."""
        return value is self.default or (type(value) is type(self.default) and bool(value == self.default))

    @property
    def default_sentence(self) -> str:
        """A sentence with the default for docstrings, after a space; empty for None and False."""
        shown = self.shown or ("" if self.default in (None, False) else repr(self.default))
        return f" The default is {shown}." if shown else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of an enumeration; empty for other options."""
        return tuple(self.limits.get("choices", ()))

    @property
    def is_count(self) -> bool:
        """Whether values are integers."""
        return self.type.startswith("int")

    @property
    def least(self) -> int | None:
        """The smallest value on an axis of integers; None for an axis of names."""
        if self.kind == "switch":
            return 0
        return int(self._stated()[1].get("least", 0)) if self.is_count else None

    def check(self, value: Any, called: str = "") -> Any:
        """Check a value and convert it to the type of the option.

        Args:
            value: The value.
            called: The name of the option in messages. The default is the name of the option.

        Returns:
            The converted value.

        Raises:
            InputError: The value has another type or is out of range.
        """
        name = called or self.name
        if value is None and self.default is None:
            return None
        checked = _CHECKS.get(self.kind)
        return self._checked(name, value) if checked is None else checked(self, name, value)

    def _checked(self, name: str, value: Any) -> Any:
        from llmir.base.arguments import check_field

        return check_field(name, value, *self._stated(), InputError)

    def _stated(self) -> tuple[str, Mapping[str, Any]]:
        """The type and limits, taken from the source if the option has one."""
        return (self.type, self.limits) if self.source is None else _source_range(*self.source)


@cache
def _source_range(owner: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """The type and limits of a field of a pass or of `Workload`."""
    from dataclasses import fields

    field = next(each for each in fields(_owner(owner)) if each.name == name)
    return str(field.type), field.metadata


def _owner(name: str) -> Any:
    if name == WORKLOAD:
        from llmir.backends.request.workload import Workload

        return Workload
    from llmir.ir.tools.pipeline import PASSES

    return PASSES[name]


def _option(default: Any, help: str, **about: Any) -> Any:
    """Declare a field of a record; `about` contains other fields of `Option` and limits."""
    fields = {name: about.pop(name) for name in Option._fields if name in about}
    return Option("", "", "", default, help, **fields, limits=about)


class _Fields:
    """Build `__dataclass_fields__` of a record when it is accessed, for `dataclasses.replace` and
    `fields`.
    """

    def __get__(self, record: object, kind: type[Record]) -> Any:
        import dataclasses

        pairs = [(each.name, each.type, dataclasses.field(default=each.default)) for each in options(kind)]
        return vars(dataclasses.make_dataclass(kind.__name__, pairs))["__dataclass_fields__"]


class _Signature:
    """Build `__signature__` of a record when it is accessed, for `help`."""

    def __get__(self, record: object, kind: type[Record]) -> Any:
        from inspect import Parameter, Signature

        either = Parameter.POSITIONAL_OR_KEYWORD
        return Signature(
            [
                Parameter(each.name, either, default=each.default, annotation=each.type)
                for each in options(kind)
            ]
        )


class _Docstring:
    """Build `__doc__` of a record when it is accessed: the text of the class, and an entry for each
    option.
    """

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, record: object, kind: type[Record]) -> str:
        from inspect import cleandoc

        text, examples, code = cleandoc(self.text or "").partition(">>>")
        entries = [f"    {each.name}: {each.help}{each.default_sentence}" for each in options(kind)]
        return "\n".join([text.rstrip(), "", "Args:", *entries, "", examples + code]).rstrip()


class Record:
    """Base class of the records: frozen dataclasses that check their values."""

    options: ClassVar[tuple[Option, ...]] = ()

    if not TYPE_CHECKING:
        __dataclass_fields__ = _Fields()
        __signature__ = _Signature()

        def __init__(self, *values, **named):
            """Take the options by position or by name."""
            if len(values) > len(self.options):
                raise TypeError(f"{type(self).__name__} takes {len(self.options)} options, got {len(values)}")
            for option, value in zip(self.options, values, strict=False):
                if option.name in named:
                    raise TypeError(f"{type(self).__name__} got {option.name!r} twice")
                named[option.name] = value
            for option in self.options:
                value = named.pop(option.name, option.default)
                vars(self)[option.name] = value if value is option.default else option.check(value)
            if named:
                raise TypeError(f"{type(self).__name__} has no option {next(iter(named))!r}")

        def __init_subclass__(cls):
            """Collect the option declarations of a record."""
            types = vars(cls)["__annotations__"]
            cls.options = tuple(
                each._replace(name=name, type=types[name], record=cls.__name__)
                for name, each in vars(cls).items()
                if isinstance(each, Option)
            )
            for each in cls.options:
                setattr(cls, each.name, each.default)
            cls.__doc__ = _Docstring(cls.__doc__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name!r}: {type(self).__name__} is read-only")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}: {type(self).__name__} is read-only")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"
        )

    @property
    def values(self) -> dict[str, Any]:
        """All options, by name."""
        return dict(vars(self))

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        values = ((each, vars(self)[each.name]) for each in options(type(self)))
        return {each.name: value for each, value in values if not each.is_default(value)}


def options(record: type[Record]) -> tuple[Option, ...]:
    """The options of a record, in the order of its fields."""
    return record.options


def option(record: type[Record], name: str) -> Option:
    """The option of a record by its name."""
    return next(each for each in record.options if each.name == name)


@dataclass(frozen=True)
class Estimation(Record):
    """The device, and the cost model that estimates the time of an op on it.

    `cost` may be an object with a method `price(row)` (`llmir.CostModel`). `engine` chooses the kernels.
    `efficiency` contains shares of the roofline's rates, such as `{"memory": 0.8}`. `price` is in dollars per
    hour, by device name.

    >>> Estimation(engine="vllm@0.12").given
    {'engine': 'vllm@0.12'}
    """

    hw: Any = _option(
        None,
        "Name of a device, or a YAML file of one.",
        shown="h100-sxm",
        metavar="DEVICE",
        list_metavar="DEVICE,…",
        kind="any",
    )
    cluster: str | None = _option(
        None, "Name of a cluster, or a YAML file of one; instead of --hw.", metavar="NAME"
    )
    network: str | None = _option(
        None,
        "Network between nodes, such as 25GBps,5us: bandwidth per device and direction, latency per hop.",
        metavar="RATE[,LATENCY]",
    )
    price: Mapping[str, float] | None = _option(
        None,
        "Price of a device in USD per hour, such as h200=3.5,b200=6.",
        shown="list prices",
        metavar="DEVICE=USD,…",
        kind="prices",
    )
    cost: str | CostModel | None = _option(
        None,
        "Cost model: ideal (the roofline), calibrated (measured kernels), or one of a plugin.",
        shown="calibrated if the device has measured kernels",
        metavar="NAME",
        list_metavar="NAME,…",
        kind="any",
    )
    engine: str | None = _option(
        None,
        "Engine whose kernels, CPU overhead and memory rules are used: vllm, sglang, trtllm "
        "…, or a version such as vllm@0.12. Without a version, the newest measured one is "
        "used.",
        metavar="NAME[@VERSION]",
        list_metavar="NAME,…",
    )
    efficiency: Mapping[str, float] | None = _option(
        None,
        "Use the roofline with these shares of the peak rates, such as "
        "compute=0.7,memory=0.8, instead of --cost. Links are "
        "nvlink=…, pcie=… and network=… (between nodes); launch=… is in seconds.",
        metavar="SHARES",
        kind="shares",
    )
    receive_interval: int | None = _option(
        None,
        "Number of decode steps between two checks for new requests (SGLang's --scheduler-recv-interval).",
        shown="the engine's",
        least=1,
    )


@dataclass(frozen=True)
class Parallel(Record):
    """The ranks that share a model, and how tokens reach the experts of other ranks.

    >>> Parallel(tp=4, pp=(20, 20, 24))
    Parallel(tp=4, pp=(20, 20, 24))
    >>> Parallel(tp=0)
    Traceback (most recent call last):
    ...
    llmir.base.errors.InputError: tp: expected an integer from 1 to 1,048,576, got 0
    """

    tp: int = _option(1, "Tensor-parallel ranks.", shown="1", source=("shard", "tp"), list_metavar="RANGE")
    pp: int | Sequence[int] = _option(
        1,
        "Number of pipeline stages, or the layers of each stage, such as 30,32,32,32.",
        shown="1",
        source=("stages", "pp"),
        kind="stages",
        metavar="N[,N…]",
        list_metavar="RANGE",
    )
    micro_batches: int = _option(
        1,
        "Number of equal parts of --batch in the pipeline.",
        source=("stages", "micro_batches"),
        list_metavar="RANGE",
    )
    dp: int = _option(
        1,
        "Data-parallel ranks; --batch is the total of all ranks.",
        source=("shard", "dp"),
        list_metavar="RANGE",
    )
    ep: int = _option(
        1, "Expert-parallel ranks; a divisor of dp·tp.", source=("shard", "ep"), list_metavar="RANGE"
    )
    dispatch: str | None = _option(
        None,
        "How tokens are sent to experts of other ranks: once per expert (rows), once per rank as in DeepEP "
        "(ranks), or all tokens to all ranks (gather).",
        shown="as the engine does",
        choices=FORMS,
        list_metavar="HOW,…",
    )
    redundant_experts: int = _option(
        0,
        "Number of additional copies of the busiest experts on the ranks of --ep, placed as EPLB does.",
        shown="0",
        source=("shard", "redundant"),
        list_metavar="RANGE",
    )
    sp: bool = _option(
        False,
        "Sequence parallelism over the tensor-parallel ranks.",
        kind="switch",
        source=("shard", "sp"),
        list_metavar="0,1",
    )
    routing: str | None = _option(
        None,
        "Distribution of tokens over experts: uniformly random (chance), equal (even), by popularity "
        "(zipf:SKEW) …; the busiest rank decides the time.",
        shown="chance",
        metavar="LAW",
        list_metavar="LAW,…",
    )
    routing_skew: float | None = _option(
        None,
        "Short for --routing zipf:SKEW: popularity is rank^-SKEW; 0 is chance.",
        source=("route", "skew"),
        metavar="SKEW",
    )


@dataclass(frozen=True)
class Precision(Record):
    """The dtypes of weights, activations, KV cache and collectives; None uses the dtypes of the checkpoint.

    `plan` maps modules, or patterns with `*`, to the dtypes of their roles.
    """

    weights: str | None = _option(
        None,
        "Dtype of weights: fp32, tf32, bf16, fp16, fp8, fp8_e5m2, fp8_b128x128, int8, int4, int4_g32, nvfp4, "
        "mxfp4 or nf4. Quantization leaves lm_head, router, norms and embeddings unchanged.",
        metavar="DTYPE",
        list_metavar="DTYPE,…",
    )
    activations: str | None = _option(
        None,
        "Dtype of the inputs of matrix products: fp8, fp8_e5m2, int8, nvfp4, mxfp4; or of all activations: "
        "bf16, fp16 or fp32.",
        metavar="DTYPE",
        list_metavar="DTYPE,…",
    )
    kv: str | None = _option(
        None,
        "Dtype of the KV cache: fp8, fp8_e5m2, int8, bf16, fp16 or fp32.",
        metavar="DTYPE",
        list_metavar="DTYPE,…",
    )
    collectives: str | None = _option(
        None,
        "Dtype of collectives: fp8, fp8_e5m2, int8, int4, bf16, fp16 or fp32. Quantization leaves the "
        "collectives of lm_head, router and embedding unchanged.",
        metavar="DTYPE",
        list_metavar="DTYPE,…",
    )
    plan: Plan | None = _option(
        None,
        "YAML file that maps each module name, or pattern such as layers.*.down_proj, to the dtype of its "
        "weights, or to a dtype for each of weights, activations, kv and collectives.",
        metavar="FILE",
        flags=("--precision",),
        kind="plan",
    )


@dataclass(frozen=True)
class Memory(Record):
    """The usable memory of a device, and the limits of a step for which the engine reserves memory.

    `reserve_bytes` is in bytes; lengths are in tokens. Without `chunked_prefill`, a step prefills whole
    prompts, and prompts that are longer than a step are refused. The defaults follow the engine.

    >>> Memory(memory_utilization=1.2)
    Traceback (most recent call last):
    ...
    llmir.base.errors.InputError: memory_utilization: expected a number above 0 up to 1, got 1.2
    """

    memory_utilization: float | None = _option(
        None,
        "Usable share of the device memory, as the engine counts it.",
        shown="the engine's; 0.9 without an engine",
        source=(WORKLOAD, "memory_utilization"),
        metavar="SHARE",
    )
    max_model_len: int | None = _option(
        None,
        "Number of tokens of the longest request; the engine reserves memory for it.",
        shown="--prompt plus --generate",
        source=(WORKLOAD, "max_model_len"),
    )
    max_num_seqs: int | None = _option(
        None,
        "Largest number of sequences that each data-parallel rank runs at once.",
        shown="the engine's, or all sequences",
        source=(WORKLOAD, "max_num_seqs"),
    )
    max_batched_tokens: int | None = _option(
        None,
        "Tokens of the largest step: the engine reserves activation memory for it, and prefill steps have as "
        "many tokens unless --chunk is smaller.",
        shown="--chunk, else the engine's",
        source=(WORKLOAD, "max_batched_tokens"),
    )
    chunked_prefill: bool | None = _option(
        None,
        "Split prompts that are longer than a step into chunks, or refuse them.",
        shown="as the engine does",
        kind="either",
    )
    reserve_bytes: int = _option(
        0,
        "Part of the usable memory that stays free, such as 2GiB or 500MB.",
        shown="0",
        source=(WORKLOAD, "reserve_bytes"),
        kind="size",
        unit="bytes",
        metavar="SIZE",
    )
    cache_policy: str = _option(
        "exact",
        "Memory reserved for caches: their bytes (exact); pages of 16 tokens, separately for each kind of "
        "layer (paged); or equal pages for all layers, where windows store all tokens (unified).",
        shown="exact",
        choices=("exact", "paged", "unified"),
    )


@dataclass(frozen=True)
class Drafts(Record):
    """Speculative decoding: one step verifies `draft_tokens` tokens of each sequence.

    `draft_model`, a program or a model as in `load`, drafts one token per step. If the model is a program,
    `verify` is the same program with logits at all positions.
    """

    draft_tokens: int | None = _option(
        None, "Draft tokens of each sequence; one step verifies all of them.", kind="draft_tokens"
    )
    acceptance: float | None = _option(
        None,
        "Probability that a draft token is accepted, independent of the previous ones.",
        least=0.0,
        most=1.0,
        metavar="SHARE",
    )
    draft_model: str | Program | None = _option(
        None,
        "Model that drafts tokens, one per step.",
        shown="the layer of --draft, or no model",
        metavar="MODEL",
        kind="any",
    )
    verify: Program | None = _option(None, "The program with logits of all positions.", kind="program")


@dataclass(frozen=True)
class Traffic(Record):
    """Requests over time: at a `rate`, from `closed` users, or from a `trace`.

    Numbers in parentheses are defaults.

    - `rate`: Requests per second. Gaps have a gamma distribution of shape `burstiness` (1, a Poisson
      process); a smaller shape gives bursts.
    - `closed`: Number of users. Each user sends a request when the previous one has completed.
    - `trace`: A file (formats: docs/serving.md), replayed `speed` times as fast (1). It contains prompts,
      outputs and the number of requests.
    - `prompt` (2048), `generate` (128): Tokens, or distributions such as `uniform:100,900` and
      `lognormal:512,0.6` (median, standard deviation of the logarithm).
    - `requests`: Number of requests (1000; in a closed loop, 10 for each user).
    - `lengths`: Distribution of output lengths around a fixed number: `spread` (uniform from 0.8 to 1.0 of
      the number, the default of users) or `fixed`.
    - `prefix_hits`: Share of each prompt that is in the prefix cache.
    - `cancel`: Share of requests that are cancelled after a random part of the output.
    - `timeout_s`: Seconds until a client gives up a request.
    - `turns`: Turns of a session, a number or a distribution. Each prompt begins with all earlier text of its
      session. It follows the previous response after an exponential time of mean `think_s` seconds (10).
    - `seed` (0): The seed of all random numbers.
    """

    rate: float | None = _option(
        None, "Requests per second, with Poisson arrivals.", least=1e-6, most=1e9, metavar="REQUESTS"
    )
    burstiness: float | None = _option(
        None,
        "Shape of the gamma distribution of arrival gaps: below 1 for bursts, above 1 for even gaps. N is "
        "the traffic of one of N servers behind a round-robin router.",
        shown="1, Poisson arrivals",
        least=1e-3,
        most=1e6,
        metavar="SHAPE",
    )
    closed: int | None = _option(
        None,
        "Number of users in a closed loop, instead of --rate: each sends a request when the last one ends.",
        least=1,
        most=REQUESTS,
    )
    trace: str | os.PathLike[str] | None = _option(
        None,
        "File of requests, .csv or .jsonl (docs/serving.md), instead of --rate.",
        metavar="FILE",
        kind="file",
    )
    speed: float = _option(1.0, "Speed-up of a trace.", shown="1", least=1e-6, metavar="TIMES")
    prompt: int | str | None = _option(
        None,
        "Prompt tokens of a request: a number, or a distribution: uniform:LEAST,MOST, normal:MEAN,DEVIATION, "
        "exponential:MEAN or lognormal:MEDIAN,SIGMA.",
        shown="2048",
        kind="lengths",
        metavar="TOKENS|LAW",
    )
    generate: int | str | None = _option(
        None,
        "Output tokens of a request: a number, or a distribution.",
        shown="128",
        kind="lengths",
        metavar="TOKENS|LAW",
    )
    requests: int | None = _option(
        None,
        "Number of requests, such as 1e5.",
        shown="1000, or 10 per --closed user",
        least=1,
        most=REQUESTS,
        kind="whole",
    )
    seed: int | None = _option(None, "Seed of all random numbers.", shown="0", least=0, kind="whole")
    prefix_hits: float = _option(
        0.0,
        "Share of each prompt that is already in the cache.",
        shown="0",
        least=0.0,
        most=1.0,
        metavar="SHARE",
    )
    cancel: float | None = _option(
        None,
        "Share of requests that users cancel after a random part of the output.",
        shown="0",
        least=0.0,
        most=1.0,
        metavar="SHARE",
    )
    turns: int | str | None = _option(
        None,
        "Turns per session, a number or a distribution; --rate is then the rate of sessions.",
        kind="lengths",
        metavar="TURNS|LAW",
    )
    think_s: float | None = _option(
        None, "Mean time between turns, in seconds.", shown="10", least=0.0, unit="s", metavar="S"
    )
    timeout_s: float | None = _option(
        None,
        "Time in seconds after which users give up a request.",
        least=0.0,
        above=True,
        unit="s",
        metavar="S",
    )
    lengths: str | None = _option(
        None,
        "Output lengths for a number in --generate: spread (uniform from 0.8 to 1.0 of it, as in InferenceX) "
        "or fixed.",
        shown="spread in a closed loop, otherwise fixed",
        choices=("spread", "fixed"),
    )


@dataclass(frozen=True)
class Servers(Record):
    """The servers of a simulation: equal `replicas` behind a `router`, or two pools joined by a `link`.

    In pools, `prefill_replicas` servers run prefill and `decode_replicas` servers decode. `decode_program` is
    the program of the decode servers if it differs from that of the prefill servers; `decode_verify` and
    `decode_draft` are then its drafts. `emit` limits plans to those that the launch files of this engine or
    orchestrator can start.
    """

    replicas: int = _option(
        1,
        "Copies of the model, each on its own devices.",
        shown="1",
        least=1,
        kind="whole",
    )
    router: str | None = _option(
        None,
        "Router that assigns requests to replicas: round-robin, random, least-loaded (fewest open requests), "
        "or prefix-aware (longest cached part of the prompt).",
        shown="round-robin",
        metavar="NAME",
    )
    prefill_replicas: int | None = _option(
        None, "Prefill servers, instead of --replicas; needs --link.", shown="1", least=1, kind="whole"
    )
    decode_replicas: int | None = _option(
        None, "Decode servers, instead of --replicas; needs --link.", shown="1", least=1, kind="whole"
    )
    link: str | None = _option(
        None,
        "Link that sends KV caches from prefill to decode servers: nvlink or another link of the device, "
        "network, or a rate such as 25GBps,5us.",
        metavar="LINK",
    )
    decode_program: Program | None = _option(None, "The program of the decode servers.", kind="program")
    decode_verify: Program | None = _option(None, "`Drafts.verify` of the decode servers.", kind="program")
    decode_draft: Program | None = _option(
        None, "`Drafts.draft_model` of the decode servers.", kind="program"
    )
    emit: str | None = _option(
        None,
        "Print the command that starts a replica of the first plan, or a file of containers for all "
        "replicas, instead of the table.",
        metavar="[vllm|sglang|trtllm|compose|k8s|dynamo]",
    )


@dataclass(frozen=True)
class Reserve(Record):
    """Reserves of a plan: a margin on estimated times, and an unused share of the stable rate of its servers.

    >>> Reserve(margin="10%")
    Reserve(margin=0.1)
    """

    margin: float | str = _option(
        0.0,
        "Plan with times that are longer than the estimates by this share, such as 10%.",
        shown="0%",
        kind="percent",
        metavar="SHARE",
        least=-0.9,
        most=10.0,
    )
    headroom: float | str | None = _option(
        None,
        "Share of the stable rate that a plan leaves unused, such as 20%.",
        shown="10% without --max-ttft, otherwise 5%",
        kind="percent",
        metavar="SHARE",
        least=0.0,
        most=0.99,
    )


@dataclass(frozen=True)
class Requests(Record):
    """The requests of a workload, or the sequences of a step; lengths are in tokens."""

    batch: int | None = _option(
        1,
        "Sequences or images in a step.",
        shown="1",
        source=(WORKLOAD, "batch"),
        list_metavar="RANGE",
    )
    prompt: int | None = _option(
        None, "Prompt tokens of each sequence.", shown="2048", source=(WORKLOAD, "prompt")
    )
    generate: int | None = _option(
        None, "Generated tokens of each sequence.", shown="128", source=(WORKLOAD, "generate")
    )
    new: int | None = _option(
        None,
        "New tokens of each sequence; 1 is a decode step.",
        shown="1",
        least=1,
        list_metavar="RANGE",
    )
    context: int | None = _option(
        None,
        "Cached tokens of each sequence, such as 1k:128k:x2.",
        shown="0",
        least=0,
        list_metavar="RANGE",
    )
    image_tokens: int | None = _option(
        None,
        "Image tokens in each prompt, in addition to --prompt; the vision tower encodes them.",
        shown="none",
        source=("place-images", "tokens"),
    )
    layer_tokens: str | None = _option(
        None,
        "Prompt tokens that each layer processes, such as 1024x4,512x4,256x16; also sets --prompt.",
        shown="all",
        metavar="NxLAYERS,…",
    )
    beams: int | None = _option(
        None,
        "Number of beams of each request (beam search).",
        kind="beams",
    )
    concurrency: int | None = _option(
        None,
        "Number of users in a closed loop, instead of --batch: each sends a request when the last one ends.",
        source=(WORKLOAD, "batch"),
    )
    chunk: int | str | None = _option(
        None,
        "Largest number of tokens of a prefill step on each data-parallel rank; all puts all "
        "prompts into one step.",
        shown="the engine's; all without an engine",
        source=(WORKLOAD, "chunk"),
        metavar="N|all",
        list_metavar="RANGE",
    )
    cached: int = _option(
        0,
        "Tokens of each prompt that are already in the cache.",
        shown="0",
        source=(WORKLOAD, "cached"),
    )
    max_ttft: float | str | None = _option(
        None, "Limit of TTFT, such as 1s; a bare number is in ms.", kind="time", metavar="TIME"
    )
    max_tpot: float | str | None = _option(
        None, "Limit of mean TPOT, such as 30ms; a bare number is in ms.", kind="time", metavar="TIME"
    )


@dataclass(frozen=True)
class Lowering(Record):
    """The options for loading a model, and the passes that lower it to the kernels of an engine."""

    lenient: bool = _option(
        False, "Accept config fields that llmir does not model, with a note.", kind="flag"
    )
    draft: bool = _option(
        False,
        "Include the multi-token prediction layer (MTP) as a draft phase.",
        kind="flag",
    )
    attention: str = _option(
        "flash",
        "Attention kernels: flash fuses them; eager writes the scores to memory.",
        shown="flash",
        choices=("flash", "eager"),
    )
    mla: str | None = _option(
        None,
        "Multi-head latent attention over expanded keys (naive) or latents (absorbed); auto is naive in "
        "prefill and absorbed in decode, as in engines.",
        choices=("auto", "naive", "absorbed"),
    )
    pipeline: str | None = _option(
        None,
        "Passes instead of the default ones, such as 'fuse-attention,fuse' or ./mine.py:function; "
        "'' for none.",
        metavar="PASSES",
        flags=("-p", "--pipeline"),
    )
    logits: str | None = _option(
        None,
        "Positions for which lm_head computes logits; all is for steps that verify drafts.",
        shown="last",
        choices=("last", "all"),
    )
    phase: str = _option(
        "both",
        "Step to draw; both draws all steps of the model.",
        shown="both",
        choices=("encode", "prefill", "decode", "draft", "both"),
    )


@dataclass(frozen=True)
class DiffSides(Record):
    """The second side of a comparison."""

    before: str | None = _option(
        None, "Passes of the first side; '' for none, as in eager mode.", metavar="PASSES"
    )
    after: str | None = _option(None, "Passes of the second side.", metavar="PASSES")
    step: str | None = _option(
        None,
        "Compare the default passes before this pass with those up to it, instead of --before and --after.",
        metavar="PASS",
        flags=("--pass",),
    )
    hw_after: Any = _option(
        None, "Device or cluster of the second side, if it differs.", metavar="DEVICE", kind="any"
    )
    engine_after: str | None = _option(
        None, "Engine of the second side, if it differs.", metavar="NAME[@VERSION]"
    )


@dataclass(frozen=True)
class Output(Record):
    """The destination of a result, and its format."""

    form: str | None = _option(None, "The format of the result.", flags=("--format",))
    output_file: str | None = _option(None, "The file to write.", flags=("-o", "--output"), metavar="FILE")
    max_size: int | None = _option(
        None,
        "Largest size of a page, such as 8MB.",
        shown="5MB",
        source=(WORKLOAD, "reserve_bytes"),
        kind="size",
        metavar="SIZE",
    )


RECORDS: tuple[type[Record], ...] = (
    *(Estimation, Parallel, Precision, Memory, Drafts, Traffic, Servers, Reserve),
    *(Requests, Lowering, DiffSides, Output),
)

# Options of `Memory` that act on a step, and on a plan.
STEP_MEMORY = ("memory_utilization", "max_num_seqs", "max_batched_tokens", "reserve_bytes")
PLAN_MEMORY = (*STEP_MEMORY, "chunked_prefill")

# The axes of `sweep`, in the order of its columns. The model is lowered once for each combination of the axes
# before `batch`; points that differ in `batch`, `new` and `context` are estimated together.
AXES: Mapping[str, Option] = {
    name: option(record, name)
    for record, names in (
        (Estimation, ("hw", "engine", "cost")),
        (Precision, ("weights", "activations", "kv", "collectives")),
        (Parallel, ("tp", "pp", "micro_batches", "dp", "ep", "sp", "redundant_experts")),
        (Parallel, ("dispatch", "routing")),
        (Requests, ("batch", "new", "context")),
    )
    for name in names
}


def record_or_default(kind: type[Kind], record: Kind | None) -> Kind:
    """Return the record of an argument, or the default record for None; InputError for another value."""
    if record is not None and not isinstance(record, kind):
        from llmir.base.arguments import refuse

        refuse(kind.__name__.lower(), record, f"llmir.{kind.__name__}(…)")
    return kind() if record is None else record


def _any(option: Option, name: str, value: Any) -> Any:
    """Accept any value; the code that uses the value checks it, such as a device or a cost model."""
    return value


def _program(option: Option, name: str, value: Any) -> Any:
    from llmir.base.arguments import refuse
    from llmir.ir.core.program import Program

    return value if isinstance(value, Program) else refuse(name, value, "a Program, such as llmir.load gives")


def _flag(option: Option, name: str, value: Any) -> Any:
    from llmir.base.arguments import flag

    return flag(name, value)


def _switch(option: Option, name: str, value: Any) -> Any:
    """Check a boolean, or 1 or 0 on an axis."""
    return bool(option._checked(name, value))


def _whole(option: Option, name: str, value: Any) -> Any:
    """Check an integer, which may be a float such as 1e5."""
    whole = isinstance(value, float) and value.is_integer()
    return option._checked(name, int(value) if whole else value)


def _percent(option: Option, name: str, value: Any) -> Any:
    """Check a share: a number, or a text such as `10%`."""
    from llmir.base.arguments import check_field

    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise InputError(f"{name}: expected a share such as 10% or 0.1, got {text[:40]!r}") from None
    return check_field(name, value, "float", option.limits, InputError)


def _lengths(option: Option, name: str, value: Any) -> Any:
    """Check a number of tokens, or a distribution with its parameters."""
    from llmir.backends.simulate.load import length_distribution

    length_distribution(name, value)
    return value


def _stages(option: Option, name: str, value: Any) -> Any:
    """Check a number of stages, or the layers of each stage."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        from llmir.base.arguments import items

        return tuple(option._checked(name, each) for each in items(name, value, "layers"))
    return option._checked(name, value)


def _file(option: Option, name: str, value: Any) -> Any:
    from llmir.base.arguments import path

    return path(name, value)


def _beams(option: Option, name: str, value: Any) -> Any:
    from llmir.base.arguments import integer
    from llmir.ir.ops.beam_search import MOST

    return integer(name, value, 1, MOST)


def _draft_tokens(option: Option, name: str, value: Any) -> Any:
    from llmir.backends.request.speculation import MOST
    from llmir.base.arguments import integer

    return integer(name, value, 1, MOST)


def _shares(option: Option, name: str, value: Any) -> Any:
    """Check numbers by name; the result is read-only."""
    from llmir.base.arguments import mapping, number
    from llmir.base.values import FrozenDict

    shares = mapping(name, value, "shares by name")
    return FrozenDict((key, number(f"{name}: {key}", share)) for key, share in shares.items())


def _prices(option: Option, name: str, value: Any) -> Any:
    """Check dollars per hour by device. `with_prices` of `llmir.hw.library` checks names and numbers."""
    from llmir.base.arguments import mapping
    from llmir.base.values import FrozenDict

    return FrozenDict(mapping(name, value, "USD an hour by device"))


def _plan(option: Option, name: str, value: Any) -> Any:
    """Check dtypes by module and role; a single dtype, such as `bf16`, applies to weights."""
    from llmir.base.arguments import mapping, text
    from llmir.base.names import plain
    from llmir.base.values import freeze

    plan = {}
    for module, roles in mapping(name, value, "types by module").items():
        by_role = roles if isinstance(roles, Mapping) else {"weights": roles}
        where = f"{name}: {plain(module)}"
        types = mapping(where, by_role, "types by role").items()
        plan[module] = {role: text(f"{where}: {plain(role)}", dtype) for role, dtype in types}
    return freeze(plan)


def limit_seconds(name: str, limit: float | str | None) -> float | None:
    """Convert a latency limit to seconds; InputError for a percentile, which only simulations have."""
    from llmir.backends.search.traffic import latency_limit

    if limit is None:
        return None
    if isinstance(limit, str) and ":" in limit:
        statistic = limit.partition(":")[0][:40]
        raise InputError(
            f"{name}: {statistic}: applies only to simulated requests (llmir plan); set a time such as 30ms"
        )
    return latency_limit(name, limit).seconds


def _time(option: Option, name: str, value: Any) -> Any:
    """Check a time in seconds, or with a unit."""
    return limit_seconds(name, value)


_CHECKS: Mapping[str, Any] = {
    "any": _any,
    "program": _program,
    "flag": _flag,
    "switch": _switch,
    "either": _flag,
    "whole": _whole,
    "percent": _percent,
    "lengths": _lengths,
    "stages": _stages,
    "file": _file,
    "beams": _beams,
    "draft_tokens": _draft_tokens,
    "shares": _shares,
    "prices": _prices,
    "plan": _plan,
    "time": _time,
}
