"""The version of llmir; `setup.cfg` has the same version."""

__version__ = "0.2.0"
