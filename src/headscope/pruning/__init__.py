"""Heads that are silenced, what that costs the model, and which of them can go."""
