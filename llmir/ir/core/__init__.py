"""Data types, tensors, equations, ops, graphs and programs."""
