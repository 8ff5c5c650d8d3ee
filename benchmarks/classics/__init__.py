"""The classic ways to find where a text changes its subject, that know nothing but the words of the text.

Each module has a `segment(sentences, count=None)`, which returns the boundaries: the numbers of the sentences that
start a new segment, rising. `count` is the number of segments where it is known; with None the method decides.
"""
