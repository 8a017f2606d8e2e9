"""Rewrites of programs. `PASSES` is what a pipeline string can name; each pass puts itself there."""
