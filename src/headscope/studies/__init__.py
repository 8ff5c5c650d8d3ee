"""Studies: running a corpus through a model, the labelled result, and what it says of the paper's claims."""
