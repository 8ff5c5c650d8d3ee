"""The sums of a study, and the ways to compute them. `reference` is the definition; the others must equal it."""
