"""Rewrites of programs. `PASSES` is what a pipeline string can name."""

from llmir.pipeline import Pass

from .dce import DeadCode
from .fuse import Fuse
from .fuse_attention import FuseAttention
from .quantize import Quantize
from .route import Route
from .shard import Shard
from .stages import Stages
from .unroll import Unroll

_ALL: tuple[type[Pass], ...] = (Quantize, FuseAttention, Fuse, Route, Shard, Stages, Unroll, DeadCode)
PASSES = {p.name: p for p in _ALL}

# What an inference engine does to every model; the command line's default.
DEFAULT_PIPELINE = "fuse-attention,fuse,dce"
