"""The Triton backend, for GPUs: high elements are bits, and no attention map of a single text is ever written to
memory."""
