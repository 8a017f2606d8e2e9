"""The intermediate representation: sizes, tensors, ops, graphs and programs."""
