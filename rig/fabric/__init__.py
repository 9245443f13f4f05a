"""Switches and links. The fabric is a process of its own (`python -m rig.fabric`) that speaks JSON lines.

shape.py      an Impairment ↔ what the kernel and the delay line are told; pure
netem.py, quantiles.py    the same as netem's own bytes, and the tables of its jitter; pure
wiring.py     bridges, cables, shaping, changes, read-back, counters
place.py      one network namespace: the only user of pyroute2
delayline.py  the process that is all links where there is no netem: passage, fates, frames, alarm; tap.py: its ends
lines.py      the fabric's end of that process    holders.py    the namespaces of nodes that are not containers
__main__.py   the process: one request a line on stdin, one answer a line on stdout
client.py     the other end of those pipes, in the orchestrator    dialogue.py    what both have in common with lines.py
offers.py     what this kernel has, for `rig doctor`
"""

SWITCH, NODE_END = "sw0", "eth0"  # a switch's bridge; a node's end of its cable
