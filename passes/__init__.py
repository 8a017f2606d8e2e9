"""Rewrites of programs. `PASSES` is what a pipeline string can name."""

from llmir.pipeline import Pass

from .dce import DeadCode
from .fuse import Fuse
from .fuse_attention import FuseAttention
from .quantize import Quantize
from .shard import Shard
from .unroll import Unroll

PASSES: dict[str, type[Pass]] = {p.name: p for p in (Quantize, FuseAttention, Fuse, Shard, Unroll, DeadCode)}

# What an inference engine does to every model; the command line's default.
DEFAULT_PIPELINE = "fuse-attention,fuse,dce"
