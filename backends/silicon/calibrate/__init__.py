"""From measured times to the parameters of kernels, and of what engines add to them."""
