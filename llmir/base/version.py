"""The version of llmir; `setup.cfg` states the same."""

__version__ = "0.2.0"
