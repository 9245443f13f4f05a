"""What NCCL's own log says of the way that traffic took: library, interface, transports, algorithm and protocol.

Formats: src/init.cc (version), src/transport/net_socket.cc (interface), src/transport/{net,p2p,shm}.cc (channels) and
src/enqueue.cc (a line for each collective, on rank 0; before 2.24 with numbers for names). Where a channel ends in
NET/Socket its data crosses the interface; SHM and P2P never do.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OVER_CABLE = "NET/Socket"
_INFO = re.compile(r"NCCL INFO|NCCL version ")
_VERSION = re.compile(r"NCCL version (\S+)")
_INTERFACE = re.compile(r"\[\d+\]([^\s:\[\]]+):")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (\S+)")
_CHOICE = re.compile(r"NCCL INFO (\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")  # NCCL_ALGO_* in order
_PROTOCOLS = ("LL", "LL128", "Simple")


def is_told(line: str) -> bool:
    """Whether a line is NCCL's, of its plain kind: what goes wrong is a warning, and stays in the log."""
    return bool(_INFO.search(line))


def notes(lines: Mapping[str, Iterable[str]]) -> list[dict[str, Any]]:
    """One "transport" note a node that NCCL said anything in: {"node", "version", "interfaces": […], "choices":
    ["AllReduce Ring/Simple", …], "ways": [{"from": rank, "to": rank, "via": "NET/Socket"}, …]}.
    """
    return [{"event": "transport", "node": node, **_read(list(own))} for node, own in lines.items() if own]


def _read(lines: Sequence[str]) -> dict[str, Any]:
    said: dict[str, dict[Any, None]] = defaultdict(dict)  # in order, each once
    for line in lines:
        if version := _VERSION.search(line):
            said["versions"][version[1]] = None
        elif "NET/Socket : Using" in line:
            said["interfaces"].update(dict.fromkeys(_INTERFACE.findall(line.partition("Using")[2])))
        elif channel := _CHANNEL.search(line):
            said["ways"][int(channel[1]), int(channel[2]), _transport(channel[3])] = None
        elif choice := _CHOICE.search(line):
            algorithm, protocol = _named(choice[2], _ALGORITHMS), _named(choice[3], _PROTOCOLS)
            said["choices"][f"{choice[1]} {algorithm}/{protocol}"] = None
    return {
        "version": next(iter(said["versions"]), None),
        "interfaces": list(said["interfaces"]),
        "choices": list(said["choices"]),
        "ways": [{"from": start, "to": end, "via": via} for start, end, via in said["ways"]],
    }


def _transport(via: str) -> str:
    """NET/Socket/0 and NET/IB/1/GDRDMA without the number of their device; SHM/direct/direct and P2P/CUMEM whole."""
    return "/".join(via.split("/")[:2]) if via.startswith("NET/") else via


def _named(word: str, names: Sequence[str]) -> str:
    """A name as NCCL_ALGO and NCCL_PROTO spell it, of a number or of capitals."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    return next((name for name in names if name.lower() == word.lower()), word)


def bypass(said: Iterable[Mapping[str, Any]], ranks: Mapping[str, int]) -> str:
    """Traffic between nodes that crossed no cable, as NCCL says itself, or nothing. `ranks`: of each node, in order."""
    nodes = [name for name, count in ranks.items() for _ in range(count)]
    for note in said:
        for way in note["ways"]:
            start, end = (nodes[way[side]] if way[side] < len(nodes) else "" for side in ("from", "to"))
            if start != end and way["via"] != OVER_CABLE:
                took = f"NCCL says that {start} → {end} went by {way['via']}, not by {OVER_CABLE} over their links"
                return f"{took}; leave NCCL_HOSTID, NCCL_NET and its …_DISABLE to the rig"
    return ""
