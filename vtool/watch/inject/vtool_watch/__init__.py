"""The part that runs inside a watched trainer, on the standard library and torch alone.

It writes the facts of docs/watch-facts.md. Two rules come first: it never harms the run (an error
is a fact, never an exception), and it reports what it could not look at.
"""
