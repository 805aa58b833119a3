"""Input that no client would send: whatever it is, a server goes on serving the others.

`cases` makes it from a seed, `victims` are the servers and what has to hold of them afterwards.
`python -m tests.fuzz --minutes 10` goes on for as long as one likes; CI runs some thousand.
"""
