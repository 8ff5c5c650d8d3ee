"""Models: loading, tokenization, and capture of what every head computes."""
