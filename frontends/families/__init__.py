"""A file for each family of models: what its configs say that others' don't."""
