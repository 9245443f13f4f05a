"""What `rig advise` says: known answers for the shipped scenarios, sums of its own for the rest, 80 columns."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rig import advice, advice_text, breakeven, remedies, scenario, whatif
from rig.errors import UsageError
from rig.formulas.predict import predict
from rig.model import Case, Phases
from rig.plan import expand
from rig.units import Rate
from rig.work import Job
from tests.lab.runs import ROOT, rig

SHIPPED = [path.stem for where in ("", "accuracy/") for path in sorted((ROOT / "scenarios").glob(f"{where}*.yaml"))]
TEXT = """\
name: x
nodes: {nodes}
link: {{rate: 1gbit{link}}}
workload: {{kind: ddp, model: resnet18, batch: {batch}, compute: {{profile: resnet18-gtx1080}}{more}}}
"""


def shipped(name: str) -> tuple[Case, ...]:
    return expand(scenario.load(next((ROOT / "scenarios").rglob(f"{name}.yaml"))), 2)


def written(nodes: int = 4, link: str = "", batch: int = 32, more: str = "") -> Case:
    text = TEXT.format(nodes=nodes, link=link, batch=batch, more=more)
    return advice.chosen(expand(scenario.loads(text, "x.yaml"), 2), "*")


def named(found: advice.Advice, name: str) -> advice.Weighed:
    return next(one for one in found.changes if one.name == name)


# ── the ranking ──────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def bandwidth() -> advice.Advice:
    return advice.advise(advice.chosen(shipped("bandwidth"), "*"))


def test_most_nodes_on_the_slowest_links_are_advised_about(bandwidth: advice.Advice) -> None:
    assert bandwidth.case.id == "nodes=4,rate=1gbit"
    assert advice.chosen(shipped("wan"), "*").id == "nodes=4,rate=200mbit"
    assert advice.chosen(shipped("bandwidth"), "nodes=2,rate=10*").id == "nodes=2,rate=10gbit"


def test_the_ranking_of_bandwidth_yaml(bandwidth: advice.Advice) -> None:
    """Step times are those that docs/accuracy.md has, predicted and measured, of the cases that the changes make."""
    assert [one.name for one in bandwidth.of_worth("helps")] == [
        "10 Gb/s links", "accumulate 16", "local SGD, H = 16", "accumulate 8", "batch ×4", "accumulate 4",
        "local SGD, H = 4", "2.5 Gb/s links", "batch ×2", "fp16 gradients", "1 node", "accumulate 2", "8 nodes",
        "6 nodes", "5 nodes",
    ]  # fmt: skip
    for name, step in (("2.5 Gb/s links", 0.5859), ("10 Gb/s links", 0.1999), ("1 node", 0.1871), ("2 nodes", 0.9337)):
        assert named(bandwidth, name).outcome.step == pytest.approx(step, abs=1e-4)
    assert named(bandwidth, "10 Gb/s links").gain == pytest.approx(1.3699 / 0.1999 - 1, rel=1e-3)
    assert named(bandwidth, "1 node").gain == pytest.approx(171 / (128 / 1.3699) - 1, rel=1e-3)


def test_a_larger_step_that_gains_little_stays_out_of_the_ranking(bandwidth: advice.Advice) -> None:
    assert [one.name for one in bandwidth.of_worth("hardly more")] == ["25 Gb/s links"]
    assert {one.name for one in bandwidth.of_worth("no gain")} >= {"2 nodes", "3 nodes", "100MiB buckets"}


def test_two_changes_together(bandwidth: advice.Advice) -> None:
    both = bandwidth.together
    assert both is not None
    assert both.name == "10 Gb/s links and 8 nodes"
    alike = whatif.nodes(whatif.at_rate(bandwidth.case, Rate.parse("10gbit")), 8)
    assert both.outcome.step == predict(alike)["step_time"].value
    assert both.gain is not None
    assert both.gain > max(one.gain or 0 for one in bandwidth.of_worth("helps"))


def test_no_two_changes_that_exclude_one_another() -> None:
    found = advice.advise(written(2, ", rtt: 40ms"))
    assert found.together is not None
    kinds = {option.kind for option in found.together.options}
    assert len(kinds) == 2
    assert not any(kinds <= either for either in advice.EITHER)


def test_one_node_needs_two_changes() -> None:
    found = advice.advise(written(1))
    assert found.of_worth("helps") == ()
    assert found.together is not None
    assert found.together.name == "25 Gb/s links and 2 nodes"
    assert "No single change helps; 25 Gb/s links" in " ".join(advice_text.text("x", found).split())


def test_bytes_and_samples_of_what_is_sent(bandwidth: advice.Advice) -> None:
    """One node of four sends 3/2 of ResNet-50's gradients for 32 samples; halved, summed up, or averaged in turn."""
    now, whole = bandwidth.now, 1.5 * 4 * 25_557_032
    assert now.sent == pytest.approx(whole, rel=2e-3)
    assert now.sent_per_sample == pytest.approx(whole / 32, rel=2e-3)
    for name, sent, samples in (
        ("fp16 gradients", whole / 2, 128), ("accumulate 8", whole, 1024), ("batch ×4", whole, 512),
        ("local SGD, H = 16", whole / 16, 128), ("8 nodes", whole * 7 / 6, 256), ("1 node", 0, 32),
    ):  # fmt: skip
        outcome = named(bandwidth, name).outcome
        assert outcome.sent == pytest.approx(sent, rel=4e-3)
        assert outcome.samples == samples
        assert outcome.sent_per_sample == pytest.approx(sent * outcome.nodes / samples, rel=4e-3)


def test_local_sgd_averages_all_weights_at_once_and_hides_nothing(bandwidth: advice.Advice) -> None:
    exchange = 1.5 * 4 * 25_557_032 * 8 / (1e9 * 1448 / 1538)
    for every in (4, 16):
        outcome = named(bandwidth, f"local SGD, H = {every}").outcome
        assert outcome.step == pytest.approx(0.18713 + exchange / every, rel=1e-3)
        assert outcome.share == pytest.approx(1 - 0.18713 / (0.18713 + exchange / every), rel=1e-2)


def test_local_sgd_goes_as_fast_as_the_slowest_machine() -> None:
    slow = "machines: {n1: {compute: {forward: 100ms, backward: 200ms}}}\n"
    text = TEXT.format(nodes=2, link="", batch=32, more="") + slow
    found = advice.advise(advice.chosen(expand(scenario.loads(text, "x.yaml"), 2), "*"))
    exchange, alone = 4 * 11_689_512 * 8 / (1e9 * 1448 / 1538), 32 / 334.7
    outcome = named(found, "local SGD, H = 4").outcome
    assert outcome.step == pytest.approx(0.300 + exchange / 4, rel=1e-3)
    assert outcome.exposed == pytest.approx(exchange / 4 + (0.300 - alone) / 2, rel=1e-2), "one in two waits"


def test_same_batch_on_more_nodes_only_where_it_divides() -> None:
    names = [option.name for option in remedies.options(written(2, batch=10))]
    assert "4 nodes, same batch" in names
    assert "3 nodes, same batch" not in names


def test_accumulation_goes_on_from_where_it_is() -> None:
    case = whatif.accumulate(written(2), 4)
    kinds = [option.name for option in remedies.options(case) if option.kind == "accumulate"]
    assert kinds == ["accumulate 8", "accumulate 16"]


# ── where things turn ────────────────────────────────────────────────────────────────────────────────
def efficiency(case: Case) -> float:
    return predict(case)["efficiency"].value


@pytest.mark.parametrize("link", ["", ", rtt: 200us"])
def test_break_even_figures_are_just_enough(link: str) -> None:
    case = written(4, link)
    turns = breakeven.break_even(case)
    assert turns is not None
    assert turns.rate is not None
    assert turns.accumulate is not None
    assert efficiency(whatif.at_rate(case, Rate(turns.rate))) >= 0.9
    assert efficiency(whatif.at_rate(case, Rate(turns.rate / 1.02))) < 0.9
    assert efficiency(whatif.accumulate(case, turns.accumulate)) >= 0.9
    assert efficiency(whatif.accumulate(case, turns.accumulate - 1)) < 0.9


@pytest.mark.parametrize("rate", ["200mbit", "1gbit", "5gbit", "20gbit"])
def test_the_fastest_number_of_nodes_for_one_batch(rate: str) -> None:
    case = whatif.at_rate(written(4), Rate.parse(rate))
    steps = {count: predict(whatif.spread(case, count))["step_time"].value for count in range(1, 129)}
    turns = breakeven.break_even(case)
    assert turns is not None
    assert steps[turns.nodes] <= min(steps.values()) * 1.002  # gloo's whole segments make it a little uneven
    assert turns.nodes_bound == (turns.nodes == 128)
    assert steps[turns.nodes_enough] <= steps[turns.nodes] * breakeven.NEARLY
    assert turns.nodes_enough == 1 or steps[turns.nodes_enough - 1] > steps[turns.nodes] * breakeven.NEARLY


def test_full_overlap() -> None:
    """Two thirds of the step but its optimizer are backward pass: 2(N−1)/N · 8S ÷ (0.9415 · t_b)."""
    turns = breakeven.break_even(written(2))
    assert turns is not None
    backward = (32 / 334.7 - 0.000731) * 2 / 3
    assert turns.hidden == pytest.approx(4 * 11_689_512 * 8 / (backward * 1448 / 1538), rel=1e-3)


def test_no_node_link_makes_up_for_a_slow_line_between_clusters() -> None:
    turns = breakeven.break_even(advice.chosen(shipped("wan"), "*"))
    assert turns is not None
    assert turns.rate is None


def test_nothing_turns_for_one_node() -> None:
    assert breakeven.break_even(written(1)) is None


# ── what is known of times ───────────────────────────────────────────────────────────────────────────
def test_real_compute_without_a_run_is_advised_by_bytes() -> None:
    case = advice.studied(shipped("digits"), "*", {})
    found = advice.advise(case)
    assert found.now.throughput is None
    assert found.together is None
    per_sample = [one.outcome.sent_per_sample for one in found.changes]
    assert per_sample == sorted(per_sample)
    assert {one.worth for one in found.changes} == {"unknown"}
    assert "give --from RUN" in advice_text.text("digits", found)
    assert "exposed" not in advice_text.text("digits", found)


def test_real_compute_with_a_run_is_advised_by_time() -> None:
    cases = shipped("digits")
    case = advice.chosen(cases, "*")
    count = len(predict(case)["payload_tx"].inputs["buckets"])
    seen = Phases(0.002, tuple(0.004 * (one + 1) / count for one in range(count)), 0.004, 0.0005)
    found = advice.advise(advice.studied(cases, "*", {case.baseline: seen}))
    assert found.now.step == pytest.approx(predict(case, seen)["step_time"].value)
    faster = predict(whatif.at_rate(case, Rate.parse("1gbit")), seen)
    assert named(found, "1 Gb/s links").outcome.step == pytest.approx(faster["step_time"].value)


def test_links_no_formula_tells_times_of() -> None:
    found = advice.advise(written(2, ", loss: 1%"))
    told = advice_text.text("x", found)
    assert found.now.step is None
    assert "how long an exchange takes there (loss)" in " ".join(told.split())
    assert "fp16 gradients" in told


def test_one_node_on_a_link_that_loses_packets() -> None:
    """By itself it does without the link, so its own time is known, and that of more nodes is not."""
    found = advice.advise(written(1, ", loss: 1%"))
    assert [one.name for one in found.of_worth("unknown")] == ["2 nodes", "3 nodes", "2 nodes, same batch"]
    assert found.together is None
    assert "no formula tells the time of: 2 nodes, 3 nodes" in advice_text.text("x", found)


def test_the_job_is_told_in_time() -> None:
    case = written(4)
    work = replace(whatif.training(case), job=Job(samples=1_281_167 * 90))
    found = advice.advise(replace(case, workload=work))
    assert found.now.throughput is not None
    document = advice_text.document("x", found)
    assert document["now"]["job_seconds"] == pytest.approx(1_281_167 * 90 / found.now.throughput)
    assert " d become " in " ".join(advice_text.text("x", found).split())


# ── text and JSON ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ("allreduce", "exchange-cost")])
def test_text_fits_80_columns_for_every_case(name: str) -> None:
    for case in shipped(name):
        lines = advice_text.text(name, advice.advise(advice.studied([case], case.id, {}))).splitlines()
        assert max(map(len, lines)) <= 80


def test_large_numbers_fit_80_columns() -> None:
    for case in (whatif.nodes(written(2), 300), whatif.batch(written(2, more=", bucket_cap: 1234567B"), 10**5)):
        lines = advice_text.text("x", advice.advise(case)).splitlines()
        assert max(map(len, lines)) <= 80
    assert "600 nodes, same batch" in advice_text.text("x", advice.advise(whatif.nodes(written(2), 300)))


def test_the_first_sentence_answers(bandwidth: advice.Advice) -> None:
    told = " ".join(advice_text.text("bandwidth", bandwidth).split())
    assert told.startswith(
        "4 nodes at 1 Gb/s are 0.55 times one machine: communication takes 86 % of a step. "
        "What would help most: 10 Gb/s links (6.9 times the samples a second)."
    )


def test_where_the_best_changes_the_training_the_best_that_does_not_is_named_too() -> None:
    told = " ".join(advice_text.text("x", advice.advise(advice.chosen(shipped("wan"), "*"))).split())
    assert "accumulate 16 (11 times the samples a second); " in told
    assert "with the training as it is: 1 Gb/s WAN lines (4.0 times)." in told


def test_json_has_everything_with_its_inputs() -> None:
    answer = rig("advise", "scenarios/bandwidth.yaml", "--json", "--only", "nodes=2,rate=1gbit")
    assert (answer.returncode, answer.stderr) == (0, "")
    document = json.loads(answer.stdout)
    assert document["case"]["id"] == "nodes=2,rate=1gbit"
    assert document["now"]["step_time"] == pytest.approx(0.9337, abs=1e-4)
    assert document["break_even"]["nodes"] == 1
    gains = [change["gain"] for change in document["changes"]]
    assert gains == sorted(gains, reverse=True)
    for change in document["changes"]:
        assert change["throughput"] == pytest.approx(document["now"]["throughput"] * (1 + change["gain"]))
        assert change["predicted"]["step_time"]["inputs"]
        assert change["means"] == [remedies.KINDS[kind] for kind in change["kinds"]]


# ── the command line ─────────────────────────────────────────────────────────────────────────────────
def test_an_allreduce_has_no_samples_to_gain() -> None:
    with pytest.raises(UsageError, match="which trains on no samples"):
        advice.chosen(shipped("allreduce"), "*")
    answer = rig("advise", "scenarios/allreduce.yaml")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("advise nodes=4,size=64KiB: weigh changes by samples a second:")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.yaml"], 2, "nowhere.yaml"),
        (["scenarios/bandwidth.yaml", "--only", "nodes=9*"], 2, "--only 'nodes=9*': select cases: none matches"),
        (["scenarios/bandwidth.yaml", "--set", "link.rate=1G"], 2, "did you mean 1gbit"),
        (["scenarios/accuracy/digits.yaml", "--from", "nowhere"], 3, "there is none"),
    ],
)
def test_bad_usage_is_words(arguments: list[str], code: int, said: str) -> None:
    answer = rig("advise", *arguments)
    assert answer.returncode == code
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


QUICK = """
import sys
from rig import cli
sys.argv = ["rig", "advise", sys.argv[1]]
try:
    cli.main()
finally:
    heavy = ("torch", "pandas", "docker", "matplotlib", "numpy", "pyroute2")
    sys.stderr.write(" ".join(name for name in heavy if name in sys.modules))
"""


def test_a_hundred_cases_take_less_than_a_second_and_no_torch(tmp_path: Path) -> None:
    """In CPU time, one in six tries, since others may keep the machine busy."""
    rates = ", ".join(f"{100 * (index + 1)}mbit" for index in range(25))
    text = TEXT.format(nodes=2, link="", batch=32, more="") + f"sweep: {{nodes: [1, 2, 4, 8], link.rate: [{rates}]}}\n"
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")

    def once() -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        argv = [sys.executable, "-c", QUICK, str(tmp_path / "x.yaml")]
        answer = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert "8 nodes at 100 Mb/s" in answer.stdout
        assert answer.stderr == ""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    assert any(once() < 1.0 for _ in range(6))
