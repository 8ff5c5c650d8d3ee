"""Models: loading them, and watching every head as they run. Only this room knows transformers."""
