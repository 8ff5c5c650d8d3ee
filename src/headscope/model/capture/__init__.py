"""Capture of every head's output and attention map while a model runs, without changing its computation.

There are two routes. `registry`: most models of transformers ask a registry for their attention function; we observe
what that function returns. `products`: other models compute their attention themselves; we trace each softmax to the
product with the values. `watching` uses both; each captured computation is a `CapturedAttention`. `verification` finds
out whether what is captured is what the heads write.
"""
