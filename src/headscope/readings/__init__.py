"""Readings: the outputs and attention maps of all heads for one text, and what is computed from them."""
