"""Texts: documents from anywhere, cut into the windows a model sees."""
