"""A Mininet of hosts on one Linux bridge, for the benchmark that sets it beside the rig's labs.

    python3 mininet_lab.py HOSTS RATE      RATE in Mbit/s; its Python must have Mininet (Debian: mininet, bridge-utils)

It writes {"event": "built", "seconds": s, "pids": {"n0": pid, …}}, then {"event": "ready"}, and holds the network
until its stdin ends. `seconds` is Mininet's own time: no start of Python, no imports.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time

SWITCH_ADDRESS = "198.19.0.1/15"


def main(hosts: int, rate: float) -> None:
    """Build as Mininet's own examples do, and hold. TCLink shapes both ends of a link."""
    link, net, nodelib = (importlib.import_module(f"mininet.{part}") for part in ("link", "net", "nodelib"))
    began = time.monotonic()
    network = net.Mininet(controller=None, switch=nodelib.LinuxBridge, link=link.TCLink)
    switch = network.addSwitch("s1")
    for number in range(hosts):
        host = network.addHost(f"n{number}", ip=f"198.18.0.{number + 1}/15")
        network.addLink(host, switch, bw=rate)
    network.start()
    seconds = time.monotonic() - began
    subprocess.run(["ip", "address", "add", SWITCH_ADDRESS, "dev", "s1"], check=True)
    print(json.dumps({"event": "built", "seconds": seconds, "pids": {one.name: one.pid for one in network.hosts}}))
    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
