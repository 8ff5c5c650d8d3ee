"""Compare studies: the paper's claims, rates over depth, head types, and differences head by head."""
