"""Rewrites of programs. `PASSES` is what a pipeline string can name; each pass puts itself there."""

from llmir.pipeline import PASSES

__all__ = ["DEFAULT_PIPELINE", "PASSES"]

# What an inference engine does to every model; the command line's default.
DEFAULT_PIPELINE = "absorb-mla{phase=decode},fuse-attention,fuse,dce"
