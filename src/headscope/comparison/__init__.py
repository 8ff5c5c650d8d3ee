"""Models side by side: what may be compared, findings, rates over depth, characters, and head by head differences."""
