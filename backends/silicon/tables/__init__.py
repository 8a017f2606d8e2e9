"""Measured tables: a file for each, with its columns, and the small programs that its rows are."""

from .table import FORMATS, Format, Kernels, Points, Refusal, header, load, load_all

__all__ = ["FORMATS", "Format", "Kernels", "Points", "Refusal", "header", "load", "load_all"]
