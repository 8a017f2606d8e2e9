"""Times of this machine's kernels, as eager PyTorch calls them, in the CSV files that calibration reads."""
