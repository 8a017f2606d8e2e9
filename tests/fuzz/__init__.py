"""Mutated inputs for every reader: each gives a result or one line, within a second and 200 MB."""
