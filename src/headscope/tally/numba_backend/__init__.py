"""The numba backend, for the CPU: loops that read every head's map once, while it is in the cache."""
