"""Text segmentation: find where a text changes its subject."""
