"""Random input at the loader: a Scenario or a ScenarioError, nothing else; and mutations with a known verdict.

The mutations keep the loader honest both ways: one that refuses all and one that accepts all fail here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig import scenario
from rig.errors import ScenarioError
from rig.plan import expand

SHOWN = re.compile(r"^show:.*\n", re.MULTILINE)
SCENARIOS = Path(__file__).parent.parent / "scenarios"
# Without `show:`, which names what is swept: the sweep is among what is changed here.
TEXTS = {path.stem: SHOWN.sub("", path.read_text(encoding="utf-8")) for path in sorted(SCENARIOS.rglob("*.yaml"))}

PLACED = re.compile(r"(x\.yaml(:\d+:\d+)?|--set .*?): \S", re.DOTALL)


def verdict(text: str, *sets: str) -> str:
    """ "accepted", or the refusal; a scenario that is accepted can be planned."""
    try:
        loaded = scenario.loads(text, "x.yaml", sets)
    except ScenarioError as error:
        for line in str(error).split("\n"):
            assert PLACED.match(line) or line.startswith("… and "), line
        return str(error)
    if len(loaded.cells) <= 50:
        expand(loaded, 2)
    return "accepted"


# ── random input ─────────────────────────────────────────────────────────────────────────────────────
WORDS = """
    name nodes link rate burst queue mtu up down machines n0 n1 tcp buffer dilation workload kind model batch compute
    profile sizes size steps warmup sweep link.rate workload.size expect traffic env timeout threads
    delay rtt jitter distribution loss enter leave bad good duplicate corrupt reorder framing
    clusters us eu wan between topology shaper seed timeline at step outage trace direction background probe 0 1
"""
VALUES = """
    1gbit 2.5gbit 1G 1MiB 10ms 2% ddp allreduce real cnn auto * &a !!x
    20packets 0ms 100% us us-eu n1 all chain up both arxiv-2306.03163 normal
"""
KEYS = st.sampled_from(WORDS.split())
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(VALUES.split()),
    st.text(max_size=12),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=5),
    max_leaves=12,
)


def written(tree: object) -> str:
    """A tree as flow YAML, quoted loosely, so that much of it is odd and some of it is not YAML at all."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {written(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(written, tree)) + "]"
    return "null" if tree is None else str(tree)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    verdict(text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-?[]{}&*!|>'\"%@#,\n\t 1.\\~x", max_size=120))
def test_any_punctuation(text: str) -> None:
    verdict(text)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=8))
def test_any_structure(tree: dict[str, object]) -> None:
    verdict("".join(f"{key}: {written(value)}\n" for key, value in tree.items()))


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), path=st.lists(KEYS, min_size=1, max_size=3), tree=TREES)
def test_any_setting(name: str, path: list[str], tree: object) -> None:
    verdict(TEXTS[name], f"{'.'.join(path)}={written(tree)}")


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), data=st.data())
def test_any_damage_to_a_shipped_file(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    at = data.draw(st.integers(0, len(text)))
    verdict(text[:at] + data.draw(st.text(max_size=4)) + text[at + data.draw(st.integers(0, 8)) :])


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError):  # no 200 random bytes are a scenario
        scenario.load(path)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60) | st.text(alphabet="0123456789.,-#\n mbit", max_size=60).map(str.encode))
def test_any_trace(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.csv"
    path.write_bytes(content)
    told = verdict(TEXTS["digits"], f"timeline=[{{trace: {path}, link: n1}}]")
    assert told == "accepted" or f"timeline.0.trace: {path}:" in told


# ── mutations with a known verdict ───────────────────────────────────────────────────────────────────
Mutation = tuple[str, str, str, str]  # file, written, instead, and what the refusal says ("" is accepted)

MUTATIONS: list[Mutation] = [
    ("bandwidth", "rate: 1gbit}", "rate: 2.5gbit}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1Gbps}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 125MB/s}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1000}", "needs a unit"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, mtu: 9000}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, mtu: 500}", "link.mtu: must be at least 576"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, burst: 512KiB}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, burst: 1MiB}", "would pass at once after a pause"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 1514B}", "holds no super-packet of 64KiB"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nmachines: {n1: {link: {mtu: 9000}}}", "one switch has one mtu"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, framing: {a: b}}", "allowed: ethernet, none"),
    ("bandwidth", "repeats: 2", "repeats: 2\nenv: {RANK: '0'}", "the rig gives each rank its own"),
    ("digits", "batch: 32", "scaling: strong\n  global_batch: 64", "does not go with compute: real"),
    ("digits", "expect:", "machines: {n1: {batch: 64}}\nexpect:", "another batch"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, burst: 1500B}", "no packet would pass"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: 1ms}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: 1}", "1ns if you mean that"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: -1ms}", "is not a duration"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: 101s}", "longer than the kernel holds a packet"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: 10s}", "needs socket buffers"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, delay: 10s}\ntcp: {buffer: 16MiB}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, rtt: 20ms}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, rtt: 2ns}", "does not divide into 4"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, rtt: 1ms, up: {delay: 1ms}}", "beside a delay"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, up: {rtt: 1ms}}", "did you mean link.rtt?"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, jitter: 1ms, distribution: pareto}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, jitter: 1ms, distribution: gauss}", "allowed: uniform, normal"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, distribution: normal}", "of no jitter"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: 0.1%}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: 1}", "loses every packet"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: 2}", "2% if you mean that"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: {enter: 1%, leave: 30%}}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: {enter: 1%, leave: 0%, bad: 99%}}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: {enter: 1%, leave: 0%}}", "loses every packet"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, loss: {enter: 1%, level: 0%}}", "did you mean leave?"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, reorder: 1%}", "needs a delay"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, reorder: 1%, rtt: 4ms}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, corrupt: 100%}", "damages every packet"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, duplicate: 100%}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 100packets}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 10packets}", "holds no super-packet"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 10packets, loss: 1%}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 0packets, loss: 1%}", "no packet would pass"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 10ms}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 1h}", "more than the kernel's token bucket can count"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, queue: 10}", "may also be written 100packets"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, burst: 1513B, loss: 1%}", "no packet would pass"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nmachines: {n3: {link: {rtt: 8ms}}}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nwan: {rate: 1gbit}", "there are none"),
    (
        "bandwidth",
        "rate: 1gbit}",
        "rate: 1gbit}\nclusters: {us: {nodes: 2}}",
        "x.yaml:16:3: nodes: stands beside clusters",
    ),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nclusters: {}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nshaper: netem\nseed: 7", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nshaper: tc", "allowed: auto, netem, delayline"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nseed: -1", "must be at least 0"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nprobe: {goodput: 5%, confidence: 99%}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nprobe: {confidence: 100%}", "below 100%"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit}\nprobe: {loss: 1%}", "Known here: goodput, rtt, slack, confidence"),
    ("bandwidth", "repeats: 2", "timeline: [{at: 1s, link: n3, rate: 10mbit}]", ""),
    ("bandwidth", "repeats: 2", "timeline: [{step: 4, link: all, outage: 2s}]", ""),
    ("bandwidth", "repeats: 2", "timeline: [{step: 4, link: all, trace: x.csv}]", "cannot start at a step"),
    ("bandwidth", "repeats: 2", "timeline: [{at: 0s, link: all, outage: 0s}]", ""),
    ("bandwidth", "repeats: 2", "timeline: [{step: 4, link: all, delay: 1ms}]", ""),
    ("bandwidth", "repeats: 2", "timeline: [{step: 5, link: all, delay: 1ms}]", "never comes to matter"),
    ("bandwidth", "repeats: 2", "timeline: [{step: 4, link: n4, delay: 1ms}]", "n4 is no link"),
    ("bandwidth", "repeats: 2", "timeline: [{step: 4, delay: 1ms}]", "timeline.0.link: missing"),
    ("bandwidth", "repeats: 2", "timeline: [{at: 1s, link: n1, mtu: 9000}]", "unknown key"),
    ("bandwidth", "repeats: 2", "timeline: [{at: 1s, link: n1, reorder: 1%}]", "needs a delay"),
    ("bandwidth", "repeats: 2", "timeline: [{at: 1s, link: n1, trace: none.csv}]", "there is no such file"),
    ("bandwidth", "repeats: 2", "background: [{link: n1, rate: 999mbit, direction: up}]", ""),
    (
        "bandwidth",
        "repeats: 2",
        "background: [{link: n1, rate: 1gbit, direction: up}]",
        "leave nothing of n1's 1gbit up",
    ),
    (
        "bandwidth",
        "repeats: 2",
        "background: [{link: n1, rate: 1mbit, direction: sideways}]",
        "allowed: up, down, both",
    ),
    ("wan", "us: {nodes: 2}", "us: {nodes: 0}", "a cluster has at least 1 node, found 0"),
    ("wan", "us: {nodes: 2}", "us: {}", "missing: a cluster has at least 1 node"),
    ("wan", "us: {nodes: 2}", "us: {nodes: two}", "needs a whole number"),
    ("wan", "us: {nodes: 2}", "us: {nodes: 9999}", "x.yaml:7:1: clusters: their nodes make 10001"),
    ("wan", "us: {nodes: 2}", "us: {nodes: 1, link: {rate: 2gbit, rtt: 400us}}", ""),
    ("wan", "us: {nodes: 2}", "us: {nodes: 1, lnk: {rate: 2gbit}}", "did you mean link?"),
    ("wan", "us: {nodes: 2}", "us: {nodes: 1, link: {mtu: 9000}}", "one switch has one mtu"),
    ("wan", "us: {nodes: 2}", "n7: {nodes: 2}", "cannot name a cluster"),
    ("wan", "us: {nodes: 2}", "us: {nodes: 2}\n  asia: {nodes: 1}", ""),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{rtt: 20ms, topology: chain, mtu: 1500}", ""),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{rate: 200mbit, rtt: 20ms, delay: 1ms}", "beside a delay"),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{rtt: 21ns}", "does not divide into 2"),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{topology: star}", "allowed: chain, mesh"),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{profile: us-eu}", ""),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{profile: us-uk}", "did you mean us-eu?"),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "{rate: 200mbit, mtu: 9000}", "one switch has one mtu"),
    ("wan", "{rate: 200mbit, rtt: 20ms}", "[]", "part of it is neither a mapping nor an item of a list"),
    (
        "wan",
        "wan.rate: [200mbit, 1gbit]",
        "wan.delay: [1ms]",
        "x.yaml:10:27: wan.rtt: 20ms stands beside a delay",
    ),
    ("wan", "wan.rate: [200mbit, 1gbit]", "clusters.eu.nodes: [1, 2]", ""),
    ("wan", "wan.rate: [200mbit, 1gbit]", "nodes: [1, 2]", "stands beside clusters"),
    ("wan", "wan.rate: [200mbit, 1gbit]", "link.delay: [0ms, 10ms]\n  link.loss: [0%, 1%]", ""),
    ("wan", "repeats: 1", "machines: {n3: {link: {rate: 10mbit}}}", ""),
    ("wan", "repeats: 1", "machines: {n4: {link: {rate: 10mbit}}}", "there is no n4"),
    ("wan", "repeats: 1", "timeline: [{at: 1s, link: us-eu, outage: 2s}]", ""),
    ("wan", "repeats: 1", "timeline: [{at: 1s, link: eu-us, outage: 2s}]", "eu-us is no link"),
    ("wan", "repeats: 1", "background: [{link: us-eu, rate: 150mbit}]", ""),
    ("wan", "repeats: 1", "background: [{link: us-eu, rate: 250mbit}]", "leave nothing of us-eu's 200mbit up"),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, framing: none}", ""),
    ("bandwidth", "rate: 1gbit}", "rate: 1gbit, framing: token-ring}", "found token-ring"),
    ("bandwidth", "[1gbit, 2.5gbit, 10gbit]", "[1gbit]", ""),
    ("bandwidth", "[1gbit, 2.5gbit, 10gbit]", "[1gbit, 10G]", "did you mean 10gbit?"),
    ("bandwidth", "[1gbit, 2.5gbit, 10gbit]", "[1gbit, 1000mbit]", "1000mbit is 1gbit again"),
    ("bandwidth", "[1gbit, 2.5gbit, 10gbit]", "[]", "at least one value"),
    ("bandwidth", "[1gbit, 2.5gbit, 10gbit]", "2.5gbit", "needs a list"),
    ("bandwidth", "nodes: [1, 2, 4]", "nodes: [256]", ""),
    ("bandwidth", "nodes: [1, 2, 4]", "nodes: [10001]", "must be at most 10000"),
    ("bandwidth", "nodes: [1, 2, 4]", "nodes: [1, two]", "needs a whole number, found two"),
    ("bandwidth", "nodes: [1, 2, 4]", "nodes: [1, 2.0]", "needs a whole number, found 2.0"),
    ("bandwidth", "nodes: [1, 2, 4]", "nodes: [1, true]", "needs a whole number, found True"),
    ("bandwidth", "link.rate:", "link.rte:", "unknown key; did you mean rate?"),
    (
        "bandwidth",
        "model: resnet50",
        "model: vgg16",
        "x.yaml:11:22: workload.compute.profile: vgg16 has no profile resnet50-gtx1080ti",
    ),
    ("bandwidth", "model: resnet50", "model: resnet5", "did you mean resnet50?"),
    ("bandwidth", "model: resnet50", "model: my.nets:make", "it has to be timed first"),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "{throughput: 171 samples/s}", ""),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "{throughput: 171}", "write it like 171 samples/s"),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "{forward: 40ms, backward: 80ms}", ""),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "{forward: 40ms}", "do not go together"),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "{forward: 40, backward: 80ms}", "40ns if you mean that"),
    ("bandwidth", "{profile: resnet50-gtx1080ti}", "real", "real compute knows cnn, transformer"),
    ("bandwidth", "batch: 32", "batch: 1", ""),
    ("bandwidth", "batch: 32", "batch: 0", "must be at least 1, found 0"),
    ("bandwidth", "batch: 32", "global_batch: 32", "workload.batch: missing"),
    ("bandwidth", "batch: 32", "global_batch: 32\n  scaling: strong", ""),
    ("bandwidth", "batch: 32", "global_batch: 30\n  scaling: strong", "30 does not divide by 4 nodes"),
    ("bandwidth", "warmup: 2", "warmup: 1", "must be at least 2"),
    ("bandwidth", "warmup: 2", "warmup: 2\n  data: .", "compute: real only"),
    ("bandwidth", "repeats: 2", "repeats: 2\ndilation: 8", ""),
    ("bandwidth", "repeats: 2", "repeats: 2\ndilation: 6", "power of two"),
    ("bandwidth", "repeats: 2", "repeats: 2\nlab: docker\ngpu: none\nthreads: 2\ntimeout: 90s\nenv: {A: b}", ""),
    ("bandwidth", "repeats: 2", "repeats: 2\nlab: dockr", "did you mean docker?"),
    ("bandwidth", "repeats: 2", "repeats: 2\ntimeout: 90", "90ns if you mean that"),
    ("bandwidth", "repeats: 2", "repeats: 2\nmachines: {n3: {batch: 16}}", ""),
    ("bandwidth", "repeats: 2", "repeats: 2\nmachines: {n4: {batch: 16}}", "there is no n4"),
    ("bandwidth", "repeats: 2", "repeats: 2\ntcp: {congestion: bbr2, rto_min: 20ms}", ""),
    ("bandwidth", "traffic: 0.05%", "traffic: 0.0005", ""),
    ("bandwidth", "traffic: 0.05%", "traffic: 5", "5% if you mean that"),
    ("bandwidth", "traffic: 0.05%", "trafic: 5%", "did you mean traffic?"),
    ("allreduce", "sizes: [64KiB, 1MiB, 25MiB]", "size: 1MiB", ""),
    ("allreduce", "sizes: [64KiB, 1MiB, 25MiB]", "size: 1M", "did you mean 1MiB?"),
    ("allreduce", "sizes: [64KiB, 1MiB, 25MiB]", "sizes: [64KiB, 1022B]", "no whole number of float32"),
    ("allreduce", "sizes: [64KiB, 1MiB, 25MiB]", "sizes: 64KiB", "needs a list"),
    ("allreduce", "sizes: [64KiB, 1MiB, 25MiB]", "steps: 3", "x.yaml:9:3: steps is written twice, first in line 8"),
    ("allreduce", "traffic: 0.05%", "step_time: 5%", ""),
    ("allreduce", "traffic: 0.05%", "speedup: 5%", "no speed-up to judge"),
    ("allreduce", "kind: allreduce", "kind: all-reduce", "did you mean allreduce?"),
    ("allreduce", "kind: allreduce", "kind: ssh", "not in this version"),
    ("digits", "compute: real", "compute: real\n  lr: 0.1\n  seed: 7\n  bucket_cap: 1MiB", ""),
    ("digits", "compute: real", "compute: reel", "write real"),
    ("digits", "compute: real", "compute: real\n  data: no-such-folder", "is no folder"),
    ("digits", "compute: real", "compute: real\n  lr: -1", "must be greater than 0"),
    ("digits", "model: cnn", "model: transformer", ""),
    ("digits", "link: {rate: 1gbit}", "link: {rate: 1gbit}\ndilation: 1", ""),
    ("digits", "link: {rate: 1gbit}", "link: {rate: 1gbit}\ndilation: 2", "cannot be stretched"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation[0]}: {mutation[2][:40]}")
def test_mutation_gets_its_verdict(mutation: Mutation) -> None:
    name, old, new, expected = mutation
    text = TEXTS[name]
    assert text.count(old) == 1, "the mutation no longer fits the shipped file"
    told = verdict(text.replace(old, new))
    if not expected:
        assert told == "accepted"
        return
    assert expected in told
    if expected.startswith("x.yaml:"):  # the fault shows elsewhere than where the change was made
        return
    first = text[: text.index(old)].count("\n") + 1
    lines = [int(found) for found in re.findall(r"x\.yaml:(\d+):", told)]
    # A missing key is told at the mapping that lacks it, all else in the lines that were changed.
    assert any(first <= line <= first + new.count("\n") for line in lines) or "missing" in told
