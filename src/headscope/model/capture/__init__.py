"""Seeing every head's output and attention map while a model runs, its own arithmetic untouched.

Two routes lead there. The registry: most models of transformers ask one registry for their attention function, and we
watch what that function is given back. `products`: the others compute their attention themselves, and we watch for a
softmax and for what it is then multiplied with. `watching` opens both; what either sees is a `Sighting`.
"""
