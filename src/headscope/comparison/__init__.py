"""Compare studies: the paper's claims, rates over depth, head characters, and differences head by head."""
