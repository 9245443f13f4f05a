"""The kernel side of the fabric: a bridge per switch, a cable per link, shaped at both ends.

Names: a switch's bridge is `sw0`; a node's end of its cable is `eth0`, the switch's end is called like the node (n0,
n1, …); a cable between switches has one name at both ends (w0, w1, …). A cable is a veth pair, or two TAPs with the
delay line between them. All stays down until it has been shaped and read back, so no byte passes before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rig.fabric import NODE_END, SWITCH, netem
from rig.fabric.lines import Lines
from rig.fabric.place import BUCKET_PARENT, Place, attempt, bucket_held, counted, mac, offered
from rig.fabric.shape import Tbf, Transit
from rig.fabric.tap import open_tap
from rig.model import WAYS
from rig.node.netlink import ROOT


class End(NamedTuple):
    """One end of a cable: the place it is in, and its interface there."""

    place: str
    interface: str


@dataclass
class Cable:
    """A cable as it was asked for, and its two ends; what goes `up` is shaped at the start, `down` at the end."""

    document: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def shaper(self) -> str:
        """tbf, netem or delayline."""
        return str(self.document["shaper"])

    @property
    def start(self) -> End:
        return End(*self.document["start"])

    @property
    def end(self) -> End:
        return End(*self.document["end"])

    def sender(self, way: str) -> End:
        """The end that sends in a direction."""
        return self.start if way == "up" else self.end

    def bucket(self, way: str) -> Tbf:
        """What the token bucket of a direction is told."""
        return Tbf.of(self.document[way]["tbf"])

    def transit(self, way: str) -> Transit | None:
        """What netem or the delay line is told for a direction; None where the bucket is all."""
        return Transit.of(self.document[way]["transit"]) if self.shaper != "tbf" else None

    def seed(self, way: str) -> int:
        """Of netem's random fates."""
        return int(self.document[way]["seed"])


class Seen(NamedTuple):
    """What a place's kernel tells of all its interfaces, by number."""

    qdiscs: Mapping[tuple[int, int], Any]
    mtus: Mapping[int, int]
    netems: Mapping[int, bytes]

    @staticmethod
    def of(place: Place) -> Seen:
        """One dump of each."""
        return Seen(place.qdiscs(), place.mtus(), place.netems())


class Fabric:
    """All switches' namespaces and every node's."""

    def __init__(self) -> None:
        with attempt("open netlink"):
            self._own = Place(None)
        self._places: dict[str, Place] = {}
        self._cables: dict[str, Cable] = {}
        self._document: Mapping[str, Any] = {}
        self._addresses: dict[str, str] = {}  # of nodes, "A/P"
        self._lines: Lines | None = None

    def offers(self) -> dict[str, Any]:
        """What this kernel has for delay and loss: {"netem": bool}."""
        with attempt("try netem"):
            return {"netem": self._own.offers_netem()}

    def build(self, document: Mapping[str, Any]) -> None:
        """Make switches and cables, shaped and down. Raises FabricError.

        `document`: {"switches": [{"name", "pid" (null: the fabric's own), "address": "A/P", "neighbours": [address],
        "reach": {address: cable}}], "nodes": [{"name", "pid", "address": "A/P", "neighbours": [address]}], "tcp":
        {"subnet", "congestion", "rto_min" (ms)}, "whole": may super-packets stay whole, "seed", "cables": [{"name",
        "shaper", "mtu", "start": [place, interface], "end": [place, interface], "up" and "down": {"tbf", "transit",
        "seed"}}]}; `pid` is any process in the place's network namespace.
        """
        self._document = document
        self._addresses = {node["name"]: node["address"] for node in document["nodes"]}
        for switch in document["switches"]:
            with attempt(f"{switch['name']}: make the switch"):
                self._places[switch["name"]] = place = Place(switch["pid"]) if switch["pid"] else self._own
                place.bridge(SWITCH, switch["address"])
        for node in document["nodes"]:
            with attempt(f"node {node['name']}: enter it"):
                self._places[node["name"]] = Place(node["pid"])
        taps: list[dict[str, Any]] = []
        for each in document["cables"]:
            cable = self._cables[each["name"]] = Cable(each)
            with attempt(f"link {cable.name}: make the cable"):
                taps += self._lay(cable)
        for node in document["nodes"]:
            with attempt(f"node {node['name']}: give it its address"):
                self._places[node["name"]].address(NODE_END, node["address"])
        if taps:
            self._lines = Lines(taps, document["seed"])
        for cable in self._cables.values():
            with attempt(f"link {cable.name}: shape"):
                for way in WAYS:
                    self._shape(cable, way)

    def _lay(self, cable: Cable) -> list[dict[str, Any]]:
        """Both ends of a cable, plugged in; where a delay line joins them, what it has to know of it."""
        start, end = self._places[cable.start.place], self._places[cable.end.place]
        here, there = self._settings(cable, cable.start), self._settings(cable, cable.end)
        there["master"] = end.number(SWITCH)  # only where it is made may a veth end be plugged in at once
        lines: list[dict[str, Any]] = []
        if cable.shaper == "delayline":
            lines = self._tapped(cable)
            start.settle(cable.start.interface, here)
            end.settle(cable.end.interface, there)
        else:
            end.cable({"ifname": cable.end.interface, **there}, start, {"ifname": cable.start.interface, **here})
        if cable.start.interface != NODE_END:
            start.enslave(cable.start.interface, SWITCH)
        return lines

    def _settings(self, cable: Cable, end: End) -> dict[str, Any]:
        settings: dict[str, Any] = {"mtu": cable.document["mtu"]}
        if end.interface == NODE_END:
            settings["address"] = mac(self._addresses[end.place])
        if not self._document["whole"]:
            settings["gso_max_segs"] = 1  # a lost packet is then a packet, not a super-packet of 64 KiB
        return settings

    def _tapped(self, cable: Cable) -> list[dict[str, Any]]:
        descriptors = {}
        for way in WAYS:
            sender = cable.sender(way)
            with self._places[sender.place].inside():
                descriptors[way] = open_tap(sender.interface)
        return [
            {"name": cable.name, "way": way, "from": descriptors[way], "to": descriptors[other],
             "transit": cable.document[way]["transit"]}
            for way, other in zip(WAYS, reversed(WAYS), strict=True)
        ]  # fmt: skip

    def _shape(self, cable: Cable, way: str, again: bool = False) -> None:
        sender = cable.sender(way)
        place = self._places[sender.place]
        act = place.reshape if again else place.shape
        inside = cable.transit(way) if cable.shaper == "netem" else None
        act(sender.interface, cable.bucket(way), inside, cable.seed(way))

    def open(self) -> None:
        """Bring every cable up, set TCP's congestion control by route, and the ways between switches.

        Raises FabricError.
        """
        for switch in self._document["switches"]:
            with attempt(f"{switch['name']}: open"):
                self._places[switch["name"]].up(SWITCH)
        for cable in self._cables.values():
            with attempt(f"link {cable.name}: open"):
                for end in (cable.end, cable.start):
                    self._places[end.place].up(end.interface)
        tcp = self._document["tcp"]
        for party, interface in self._parties():
            place, name = self._places[party["name"]], party["name"]
            with attempt(f"{name}: set TCP congestion control {tcp['congestion']!r} (this kernel offers {offered()})"):
                place.up("lo")
                place.steer(interface, party["address"], tcp)
            with attempt(f"{name}: learn who is beyond its switch"):
                for address in party["neighbours"]:
                    place.neighbour(interface, address)
        for switch in self._document["switches"]:
            with attempt(f"{switch['name']}: set the ways to other switches"):
                self._set_ways(switch)

    def _parties(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        yield from ((switch, SWITCH) for switch in self._document["switches"])
        yield from ((node, NODE_END) for node in self._document["nodes"])

    def _set_ways(self, switch: Mapping[str, Any]) -> None:
        place = self._places[switch["name"]]
        for cable in self._cables.values():
            for end in (cable.start, cable.end):
                if end.place == switch["name"] and cable.start.interface != NODE_END:
                    place.silence(end.interface)
        for address, name in switch["reach"].items():
            cable = self._cables[name]
            port = cable.start if cable.start.place == switch["name"] else cable.end
            place.forward(port.interface, address)

    def change(self, request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Make a cable something else while it is in use, and read it back: {"up" | "down": as in read_back}.

        `request`: {"name", "plugged", "up": {"tbf", "transit"}, "down": …}. Raises FabricError.
        """
        cable = self._cables[request["name"]]
        with attempt(f"link {cable.name}: change it"):
            for way in WAYS:
                cable.document[way] = {**cable.document[way], **request[way]}
                self._shape(cable, way, again=True)
                if cable.shaper == "delayline" and self._lines:
                    self._lines.change(cable.name, way, cable.document[way]["transit"])
            end = cable.end  # without its carrier the other end falls silent too, as when a plug is pulled
            self._places[end.place].up(end.interface, "up" if request["plugged"] else "down")
        return self.read_back(cable.name)[cable.name]

    def read_back(self, name: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """What is in force, of every cable or one: {cable: {"up" | "down": {"kind": shaper, "mtu", "tbf": {…},
        "transit": {…} or null}}}. Raises FabricError.
        """
        cables = list(self._cables.values()) if name is None else [self._cables[name]]
        with attempt("read the links back"):
            tapped = self._lines.transits() if self._lines else {}
            places = {cable.sender(way).place for cable in cables for way in WAYS}
            seen = {name: Seen.of(self._places[name]) for name in places}
        return {
            cable.name: {way: self._held(cable, way, seen[cable.sender(way).place], tapped) for way in WAYS}
            for cable in cables
        }

    def _held(self, cable: Cable, way: str, seen: Seen, tapped: Mapping[Any, Any]) -> dict[str, Any]:
        sender = cable.sender(way)
        number = self._places[sender.place].number(sender.interface)
        inner = (number, BUCKET_PARENT if cable.shaper == "netem" else ROOT)
        held: dict[str, Any] = {"kind": cable.shaper, "mtu": seen.mtus[number], "transit": None}
        held["tbf"] = bucket_held(seen.qdiscs.get(inner))
        if cable.shaper == "netem" and number in seen.netems:
            held["transit"] = netem.held(seen.netems[number], cable.document[way]["transit"])
        elif cable.shaper == "delayline" and self._lines:
            held |= {"transit": tapped[cable.name, way], "latency": self._lines.latency}
        return held

    def counters(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Cumulative per cable and direction: {"bytes" (as tc counts), "packets", "drops", "backlog"}, and what the
        delay line counts, where there is one.
        """
        with attempt("read the counters"):
            seen = {name: place.qdiscs() for name, place in self._places.items()}
            lines = self._lines.counters() if self._lines else {}
            found: dict[str, dict[str, dict[str, Any]]] = {}
            for cable in self._cables.values():
                for way in WAYS:
                    sender = cable.sender(way)
                    number = self._places[sender.place].number(sender.interface)
                    figures: dict[str, Any] = counted(seen[sender.place].get((number, ROOT)))
                    found.setdefault(cable.name, {})[way] = figures | lines.get((cable.name, way), {})
            return found
