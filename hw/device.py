"""A device: the peaks, memory and links of one rank, in SI units, with a source for each number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, ParseError
from llmir.base.names import suggest
from llmir.base.values import Record
from llmir.ir.core.dtype import WIDER, unit_of

from . import calibration_files
from .calibration import Calibration
from .link import Link, MachineNode
from .schema import field_path


@dataclass(frozen=True, eq=False)
class Device(Record):
    """The hardware of one rank in SI units. Peaks are dense rates in FLOP/s, by dtype; sources are listed by
    dotted field.

    `isa` is the compilation target of its kernels, such as sm_90 or gfx942, and `memory_kind` a name such as
    HBM3. `memory_bytes` is the size on the datasheet, `physical_bytes` the size that the driver reports.
    `runs_as` names the dtype whose unit computes a dtype that has no unit of its own. `node` is the machine
    around the device, which makes it a cluster. With `hides_launches`, a graph of kernels hides launches;
    otherwise, the gap between two kernels is as long in a graph as outside. A CPU has `cores` instead of
    multiprocessors. The calibration comes from its own file, or from the bundled device `measured_as`.
    Devices compare by content and are hashed once, so that they can key a cache.
    """

    name: str
    vector_flops: Mapping[str, float]
    memory_bytes: int
    memory_Bps: float  # noqa: N815 (B is bytes)
    aliases: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    isa: str = ""
    memory_kind: str = ""
    physical_bytes: int | None = None
    matrix_flops: Mapping[str, float] = field(default_factory=dict)
    multiprocessors: int | None = None
    cores: int | None = None
    l2_bytes: int | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    node: MachineNode | None = None
    hides_launches: bool = True
    runs_as: Mapping[str, str] = field(default_factory=dict)
    price_per_hour_usd: float | None = None
    board_power_W: float | None = None  # noqa: N815 (W is watts)
    own_calibration: Calibration | None = None
    measured_as: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def calibration(self) -> Calibration | None:
        """The measured kernels, read on first access; None without measurements."""
        return self.own_calibration or calibration_files.calibration_of(self.measured_as)

    @property
    def capacity_bytes(self) -> int:
        """The memory that programs can use: the physical memory if known, otherwise the nominal one."""
        return self.physical_bytes or self.memory_bytes

    def matrix_peak(self, dtype: str) -> tuple[float, str]:
        """The peak FLOP/s of matrix products in `dtype`, and the dtype whose unit computes them.

        The unit is that of the dtype, of `runs_as`, of the next larger dtype, or the vector units, in this
        order. HardwareError for an unknown dtype, or for fp64 on a device without it.

        >>> from llmir.hw import library
        >>> library.load("h100-sxm").matrix_peak("bf16"), library.load("a100").matrix_peak("fp8_e4m3")
        ((989400000000000.0, 'bf16'), (312000000000000.0, 'bf16'))
        >>> library.load("v100").matrix_peak("bf16"), library.load("h100-sxm").matrix_peak("fp32")
        ((125000000000000.0, 'fp16'), (66900000000000.0, 'fp32'))
        """
        unit = self.matrix_unit(dtype)
        return (self.matrix_flops[unit], unit) if unit else self.vector_peak(dtype)

    def matrix_unit(self, dtype: str) -> str | None:
        """The dtype whose matrix unit computes products in `dtype`; None for the vector units.

        >>> from llmir.hw import library
        >>> library.load("h100-sxm").matrix_unit("fp32"), library.load("mi300x").matrix_unit("fp32")
        (None, 'fp32')
        """
        unit = _unit(dtype)
        candidates = (unit, self.runs_as.get(unit, unit), *WIDER[unit])
        return next((c for c in candidates if c in self.matrix_flops), None)

    def vector_peak(self, dtype: str) -> tuple[float, str]:
        """The peak FLOP/s of elementwise work in `dtype`, and the dtype of the lanes that compute it; by
        default, fp32.

        HardwareError for an unknown dtype, or for fp64 on a device without it.
        """
        unit = _unit(dtype)
        # fp32 lanes represent every smaller dtype, but not fp64.
        fallback = () if unit == "fp64" else ("fp32",)
        for candidate in (unit, self.runs_as.get(unit, unit), *fallback):
            if candidate in self.vector_flops:
                return self.vector_flops[candidate], candidate
        raise HardwareError(f"{self.name} states no {unit} peak, only {', '.join(self.vector_flops)}")

    def link(self, ranks: int) -> tuple[str, Link]:
        """The fastest link to this number of neighbors, with its name; HardwareError if there is none.

        >>> from llmir.hw import library
        >>> [library.load("rtx3090").link(n)[0] for n in (2, 4)]
        ['nvlink', 'pcie']
        >>> [library.load("mi300x").link(n)[1].Bps / 1e9 for n in (2, 4, 8)]  # one of seven links, three, all
        [64.0, 192.0, 448.0]
        """
        return self.link_of(range(ranks))

    def link_of(self, group: Collection[int]) -> tuple[str, Link]:
        """The fastest link that connects the ranks of `group`, with its name; HardwareError if there is none.

        >>> from llmir.hw import library
        >>> library.load("rtx3090").link_of((1, 2))[0]  # two bridges, (0, 1) and (2, 3)
        'pcie'
        """
        joining = {name: link for name, link in self.links.items() if link.joins(group)}
        if not joining:
            raise HardwareError(f"{self.name} has no link that joins {len(group)} ranks")
        found = {name: link.among(len(group)) for name, link in joining.items()}
        name = max(found, key=lambda n: found[n].usual_Bps)
        return name, found[name]

    @property
    def host_link(self) -> tuple[str, Link]:
        """The fastest link to CPU memory, with its name; HardwareError if there is none.

        >>> from llmir.hw import library
        >>> library.load("gh200").host_link[0], library.load("rtx3090").host_link[0]
        ('nvlink-c2c', 'pcie')
        """
        known = {n: link for n, link in self.links.items() if n == "pcie" or link.ranks == 1}
        if not known:
            raise HardwareError(f"{self.name} has no known link to its host")
        name = max(known, key=lambda n: known[n].usual_Bps)
        return name, known[name]

    def source(self, key: str) -> str:
        """The source of a constant, by field or file key, for one number or a whole group.

        >>> from llmir.hw import library
        >>> library.load("l4").source("matrix_tflops.fp8")
        'NVIDIA L4 datasheet, halved from with-sparsity figures'
        """
        path = field_path(key)
        found = [s for p, s in self.sources.items() if p == path or p.startswith(path + ".")]
        if not found:
            near = suggest(path, self.sources) or f", it has {', '.join(self.sources)}"
            raise HardwareError(f"{self.name} has no number {key!r}{near}")
        return "; ".join(dict.fromkeys(found))


def _unit(dtype: str) -> str:
    try:
        return unit_of(dtype)
    except ParseError as error:
        raise HardwareError(str(error)) from None
