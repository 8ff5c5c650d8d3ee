"""The sums of a study and the backends that compute them. `reference` is the definition; all others must equal it."""
