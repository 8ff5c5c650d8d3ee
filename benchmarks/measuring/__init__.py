"""What the benchmarks share: models and windows to measure on, the ways, taking turns, memory, tables."""
