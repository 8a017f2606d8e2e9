"""From measured times to the parameters of kernels."""
