"""Names and sizes of a checkpoint's tensors, and the weights of a program."""
