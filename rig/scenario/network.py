"""Where the keys of each cable are written, and what they say together; nothing is derived yet, `plan` does that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from rig.model import ETHERNET_HEADER, WAYS, Cable, Direction, Framing, Impairment, Link, Loss, Switch
from rig.scenario.links import AllWansKeys, LinkKeys, LossKeys, Packets, WanKeys, WayKeys, WaysKeys
from rig.scenario.profiles import Figures, figures
from rig.scenario.workloads import Loc
from rig.units import Duration, Fraction, Rate, Size

if TYPE_CHECKING:
    from rig.scenario.written import Written

NODE_HOPS, WAN_HOPS = 4, 2  # one-way delays in an RTT: from node to node by two links there and back; on one link


@dataclass(frozen=True)
class Source:
    """Where the keys of one cable are written, nearest first."""

    name: str
    start: str
    end: str
    home: Loc  # where a missing key would be written
    groups: tuple[tuple[Loc, WaysKeys], ...]
    hops: int  # one-way delays that its `rtt` is made of

    def find(self, key: str, direction: Direction | None = None) -> tuple[Loc, Any]:
        """A key's place and value: one group before the next, one direction before both; None where nothing says it."""
        for group in self.groups:
            loc, found = _said(group, key, direction)
            if found is not None:
                return loc, found
        return (*self.home, key), None

    def delay(self, direction: Direction) -> tuple[Loc, Duration]:
        """The one-way delay's place and value, written as such or as a share of `rtt`."""
        for group in self.groups:
            for key, parts in (("delay", 1), ("rtt", self.hops)):
                loc, found = _said(group, key, direction)
                if found is not None:
                    return loc, Duration(found // parts)
        return (*self.home, "delay"), Duration(0)

    def queue(self, direction: Direction) -> tuple[Loc, Size]:
        """The queue's place and bytes, as written in bytes, packets or time of the rate; 0 where nothing says it."""
        loc, found = self.find("queue", direction)
        if isinstance(found, Packets):
            found = found * (self.mtu + ETHERNET_HEADER)
        elif isinstance(found, Duration):
            found = ceil((self.find("rate", direction)[1] or 0) * found.seconds / 8)
        return loc, Size(found or 0)

    @property
    def mtu(self) -> int:
        """Largest IP packet, bytes."""
        return int(self.find("mtu")[1] or 1500)

    @property
    def framing(self) -> Framing:
        """Whether its rate is a cable's (`ethernet`) or tc's own count (`none`)."""
        return self.find("framing")[1] or "ethernet"

    def impairment(self, direction: Direction) -> Impairment:
        """One direction; burst and queue are 0 where they are to be derived."""
        return self._ways[direction]

    @cached_property
    def _ways(self) -> Mapping[Direction, Impairment]:
        return {direction: self._way(direction) for direction in WAYS}

    def _way(self, direction: Direction) -> Impairment:
        found = {key: self.find(key, direction)[1] for key in WayKeys.model_fields}
        loss: LossKeys | None = found["loss"]
        return Impairment(
            rate=found["rate"] or Rate(0),
            burst=found["burst"] or Size(0),
            queue=self.queue(direction)[1],
            delay=self.delay(direction)[1],
            jitter=found["jitter"] or Duration(0),
            distribution=found["distribution"] or "normal",
            loss=loss.loss if loss else Loss(),
            duplicate=found["duplicate"] or Fraction(0),
            corrupt=found["corrupt"] or Fraction(0),
            reorder=found["reorder"] or Fraction(0),
        )

    def link(self) -> Link:
        """Both directions; burst and queue are 0 where they are to be derived."""
        return Link(self.impairment("up"), self.impairment("down"), self.mtu, self.framing)


def _said(group: tuple[Loc, WaysKeys], key: str, direction: Direction | None) -> tuple[Loc, Any]:
    """What one group says of a key: one direction before both; None for nothing."""
    loc, keys = group
    way: WayKeys | None = getattr(keys, direction) if direction else None
    if way is not None and (found := getattr(way, key, None)) is not None:
        return (*loc, str(direction), key), found
    return (*loc, key), getattr(keys, key, None)


# ── nodes and clusters ───────────────────────────────────────────────────────────────────────────────
def switches(written: Written) -> tuple[Switch, ...]:
    """One switch, or one for each cluster."""
    if not written.clusters:
        return (Switch(),)
    return tuple(
        Switch(switch_of(cluster), f"198.19.0.{number}", cluster)
        for number, cluster in enumerate(written.clusters, start=1)
    )


def switch_of(cluster: str) -> str:
    """The name of a cluster's switch; "" is no cluster."""
    return f"switch-{cluster}" if cluster else "switch"


def cluster_of(written: Written, node: str) -> str:
    """The cluster a node is in, nodes being numbered through in cluster order; "" for none."""
    before, number = 0, int(node[1:])
    for name, cluster in written.clusters.items():
        before += cluster.nodes
        if number < before:
            return name
    return ""


def node_source(written: Written, node: str) -> Source:
    """Where a node's link is written: by its own name, by its cluster, for all."""
    cluster = cluster_of(written, node)
    machine = written.machines.get(node)
    groups: list[tuple[Loc, LinkKeys | None]] = [
        (("machines", node, "link"), machine.link if machine else None),
        (("clusters", cluster, "link"), written.clusters[cluster].link if cluster else None),
        (("link",), written.link),
    ]
    given = tuple((loc, keys) for loc, keys in groups if keys is not None)
    return Source(node, node, switch_of(cluster), ("link",), given, NODE_HOPS)


def node_sources(written: Written) -> dict[str, Source]:
    """Every node's link by the node's name; nodes without keys of their own share what their cluster says."""
    shared: dict[str, Source] = {}
    sources = {}
    for number in range(written.size):
        node = f"n{number}"
        if node in written.machines:
            sources[node] = node_source(written, node)
            continue
        cluster = cluster_of(written, node)
        if cluster not in shared:
            shared[cluster] = node_source(written, node)
        alike = shared[cluster]
        sources[node] = Source(node, node, alike.end, alike.home, alike.groups, alike.hops)
    return sources


# ── between clusters ─────────────────────────────────────────────────────────────────────────────────
def wan_pairs(written: Written) -> Iterator[tuple[Loc, str, str, WanKeys | AllWansKeys]]:
    """Where each link between two clusters is written, the two, and its keys."""
    if isinstance(written.wan, list):
        for index, keys in enumerate(written.wan):
            yield ("wan", str(index)), keys.between[0], keys.between[1], keys
    elif written.wan is not None:
        chained = written.wan.topology == "chain"
        for one, other in pairwise(written.clusters) if chained else combinations(written.clusters, 2):
            yield ("wan",), one, other, written.wan


def wan_sources(written: Written) -> dict[str, Source]:
    """Every link between clusters by its name; a profile stands behind what is written, the nodes' mtu behind it."""
    said: dict[tuple[Loc, Figures | None], tuple[tuple[Loc, WaysKeys], ...]] = {}
    found = {}
    for loc, one, other, keys in wan_pairs(written):
        known = figures(keys.profile, one, other) if keys.profile else None
        if (loc, known) not in said:
            said[loc, known] = _wan_groups(written, loc, keys, known)
        name = f"{one}-{other}"
        found[name] = Source(name, switch_of(one), switch_of(other), loc, said[loc, known], WAN_HOPS)
    return found


def _wan_groups(
    written: Written, loc: Loc, keys: WanKeys | AllWansKeys, known: Figures | None
) -> tuple[tuple[Loc, WaysKeys], ...]:
    measured = ((*loc, "profile"), LinkKeys(rate=known[0], rtt=known[1])) if known else None
    mtu_at, mtu = node_source(written, "n0").find("mtu")
    return ((loc, keys), *((measured,) if measured else ()), (mtu_at[:-1], LinkKeys(mtu=mtu)))


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────
def sources(written: Written) -> dict[str, Source]:
    """Every cable by its name: the nodes' in node order, then those between clusters."""
    return node_sources(written) | wan_sources(written)


def cables(written: Written) -> tuple[Cable, ...]:
    """Every cable as written; burst and queue are 0 where they are to be derived."""
    links: dict[int, Link] = {}  # alike cables share their groups, and hundreds of them are resolved once
    made = []
    for source in sources(written).values():
        alike = id(source.groups)
        if alike not in links:
            links[alike] = source.link()
        made.append(Cable(source.name, source.start, source.end, links[alike]))
    return tuple(made)
