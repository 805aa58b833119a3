"""Hostile input to real processes: whatever it is, they go on serving the others.

`world` starts the servers as production does; `plan` makes of a seed what is sent (`frames`,
`peerframes`, `requests`: recorded traffic, changed; `situations`: connections, silence, sizes);
`attack` sends it; `live` are our own clients meanwhile, `watch` what has to hold. `run` puts that
together, and halves what was found. `planted` puts faults back that have to be found.
"""
