"""Running a study: plan chunks, count them on an engine, add up partial sums, write checkpoints."""
