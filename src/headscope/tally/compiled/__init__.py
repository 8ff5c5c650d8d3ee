"""The tally in loops that numba compiles, for the CPU: every head's maps are read once, while they are in the cache."""
