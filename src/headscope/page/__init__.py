"""Pages people open or see in a notebook. They draw what a study holds and compute nothing of their own."""
