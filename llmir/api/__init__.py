"""The public Python functions: load a program, estimate it, compare, serve, plan, draw, measure."""
