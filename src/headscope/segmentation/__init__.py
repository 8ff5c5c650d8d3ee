"""Where a text changes its subject."""
