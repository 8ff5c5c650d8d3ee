"""One text: every head's matrices under labels, its pairs, lines, blocks, regions and dominant tokens."""
