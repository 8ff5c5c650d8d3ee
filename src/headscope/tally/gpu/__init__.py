"""The tally in Triton kernels, for GPUs: high elements are bits, and no map of a single text is ever written."""
