"""HTML pages and notebook representations of results. They display results and compute none of their own."""
