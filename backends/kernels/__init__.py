"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""
