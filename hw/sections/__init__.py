"""Sections of an engine's file, one a module: what it says of the engine beside its host."""
