"""`rig profile`: real models timed on this machine's CPU, tables that plans can use, and every way it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rig import models, profiling
from rig.errors import UsageError
from rig.scenario import loads
from rig.scenario.fields import ComputeKeys, pace
from rig.scenario.origins import origins
from rig.workloads.layers import Spans, WallClock, flop_shares, shares, tensors, trained
from rig.workloads.nets import NETS
from tests.lab.runs import ROOT, rig

pytestmark = pytest.mark.timeout(300)

FACTORIES = '''
import socket
import urllib.request
import torch
from torch import nn

NOTHING = 5

def net():
    print("a word on stdout disturbs nobody")
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

def frozen_front():
    made = net()
    made[0].requires_grad_(False)
    return made

def unused():
    made = net()
    made.spare = nn.Parameter(torch.zeros(3))
    made.forward = lambda x: made[2](made[1](made[0](x)))
    return made

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.out = nn.Linear(8, 50)
    def forward(self, words):
        return {"logits": [self.out(self.table(words))]}

class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
    def forward(self, x, when):
        return self.one(x) * when[:, None]

class Stubborn(nn.Module):
    """Cannot live on the meta device."""
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
    def forward(self, x):
        return self.one(x) * float(x.sum())

def needy(width, *, depth):
    return nn.Linear(width, depth)

def raises():
    raise KeyError("no such configuration")

def nothing():
    return {"a": 1}

def bare():
    return nn.ReLU()

def frozen():
    return net().requires_grad_(False)

def downloads():
    try:
        urllib.request.urlopen("https://example.org/weights.bin", timeout=2)
    except Exception:
        pass
    return net()

def connects():
    socket.create_connection(("192.0.2.1", 80), timeout=2)

def offline():
    raise OSError("We couldn't connect to 'https://huggingface.co' to load the files")

class Number(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
    def forward(self, x):
        return 3.5

def double():
    return nn.Linear(8, 8).double()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FACTORIES, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "other.json").write_text("[]", encoding="utf-8")
    (tmp_path / "needs.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    return tmp_path


def profile(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """One `rig profile` in a folder, with one thread, as other tests may run beside it."""
    return rig("profile", *arguments, cwd=folder, env={"OMP_NUM_THREADS": "1"}, within=280)


def made(folder: Path, model: str, *options: object) -> dict[str, Any]:
    """The table that one command line writes."""
    answer = profile(folder, model, "--repeats", "2", "--out", "t.json", *options)
    assert answer.returncode == 0, answer.stderr
    assert "t.json written" in answer.stdout
    assert all(len(line) <= 80 for line in answer.stdout.splitlines()), answer.stdout
    models.read(folder / "t.json")
    document: dict[str, Any] = json.loads((folder / "t.json").read_text(encoding="utf-8"))
    return document


def only(document: dict[str, Any]) -> dict[str, Any]:
    """The one profile of a table."""
    (times,) = document["profiles"].values()
    return dict(times)


# ── what it measures ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("model", sorted(NETS))
def test_the_rigs_own_networks_are_timed(folder: Path, model: str) -> None:
    document = made(folder, model, "--batch", "4")
    times = only(document)
    assert [(one["name"], one["shape"]) for one in document["parameters"]] == [
        (name, list(one.shape)) for name, one in NETS[model]().named_parameters()
    ]
    for key in ("forward_shares", "backward_shares"):
        assert sum(times[key]) == pytest.approx(1, abs=1e-9)
        assert min(times[key]) >= 0
    assert sum(one["flops"] for one in document["parameters"]) == pytest.approx(1, abs=1e-9)
    assert 1e-5 < times["forward"] < 100 and 1e-5 < times["backward"] < 100 and 1e-6 < times["optimizer"] < 100
    assert times["machine"] == models.machine()
    assert (times["batch"], times["device"], times["torch"]) == (4, "cpu", torch.__version__)
    assert document["schema"] == 2


def test_a_heavy_layer_takes_the_time() -> None:
    """Two layers in a chain, one with 400 times the work: both directions say so, whatever else this machine does."""
    from rig.workloads.profiling import measured

    net = nn.Sequential(nn.Linear(1000, 20, bias=False), nn.Linear(20, 20, bias=False), nn.Linear(20, 2000, bias=False))
    job = {"batch": 512, "repeats": 5, "optimizer": "sgd"}
    found = measured(net, [torch.randn(512, 1000)], job, lambda _: None)
    assert found["forward_shares"][1] < 0.25
    assert found["backward_shares"][1] < 0.25


def test_marks_become_spans() -> None:
    """Forward, a mark begins a turn; backward, it ends one; what is left over at an end is a neighbour's."""
    spans = Spans(WallClock(), 3)
    spans.marks = [([(0, 1.0), (1, 3.0)], 1.0), ([(2, 1.0)], 5.0)]
    assert spans.forward(0.0, 7.0) == [1.25, 3.75, 2.0]
    assert spans.backward(0.0, 7.0) == [0.25, 0.75, 6.0]
    assert Spans(WallClock(), 2).forward(0.0, 1.0) == [0.0, 0.0]


def test_flops_are_counted_without_computing() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 1000, bias=False))
        found = flop_shares(net, [torch.randn(1, 1000)])
    assert sum(found) == pytest.approx(1)
    assert found[0] == pytest.approx(0.5, rel=0.01)
    assert found[1] < 0.001
    assert found[2] == pytest.approx(0.5, rel=0.01)


def test_a_tied_tensor_is_one_and_is_the_first_users() -> None:
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    net[2].weight = net[0].weight
    assert list(trained(net)) == ["0.weight", "1.weight"]
    assert flop_shares(net, [torch.randn(1, 8)]) == pytest.approx([1 / 3, 2 / 3])  # what follows is its neighbour's


def test_a_frozen_layers_time_is_its_neighbours(folder: Path) -> None:
    document = made(folder, "mine:frozen_front")
    assert [one["name"] for one in document["parameters"]] == ["2.weight", "2.bias"]
    assert sum(one["flops"] for one in document["parameters"]) == pytest.approx(1)


def test_outputs_may_be_nested_and_shares_of_nothing_are_alike() -> None:
    one, two = torch.zeros(2), torch.ones(3)
    assert list(tensors({"a": [one, {"b": (two, "c", None)}]})) == [one, two]
    assert shares([0.0, 0.0]) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mine:net", ()),
        ("mine:Words", ()),  # words by the embedding's own number
        ("mine:Words", ("--input", "7:int")),
        ("mine:TwoInputs", ("--input", "8", "--input", "scalar:int")),
        ("mine:Stubborn", ("--optimizer", "adamw")),
        ("torch.nn:Identity", None),
    ],
)
def test_factories_and_inputs(folder: Path, model: str, options: tuple[str, ...] | None) -> None:
    if options is None:  # no parameter at all
        answer = profile(folder, model)
        assert "no parameter has requires_grad" in answer.stderr
        return
    times = only(made(folder, model, *options))
    assert times["batch"] == 8
    assert times["optimizer_kind"] == ("adamw" if "adamw" in options else "sgd")


def test_unused_tensors_are_told(folder: Path) -> None:
    answer = profile(folder, "mine:unused", "--repeats", "1")
    assert answer.returncode == 0, answer.stderr
    assert "1 tensors got no gradient from this input; DDP would wait for them" in answer.stderr
    assert (folder / "unused.json").exists()  # named after the factory


# ── the table ────────────────────────────────────────────────────────────────────────────────────────
SCENARIO = """\
name: mine
nodes: 2
link: {{rate: 100mbit}}
workload: {{kind: ddp, model: {model}, batch: 16, compute: {{profile: {profile}}}}}
"""


def test_a_plan_is_paced_by_the_table(folder: Path) -> None:
    document = made(folder, "transformer")
    ((name, times),) = document["profiles"].items()
    (folder / "mine.yaml").write_text(SCENARIO.format(model="t.json", profile=name), encoding="utf-8")
    answer = rig("plan", folder / "mine.yaml", "--json")  # from another folder: the path is the scenario's
    assert answer.returncode == 0, answer.stderr
    alone, both = (case["predicted"] for case in json.loads(answer.stdout)["cases"])
    expected = 2 * (times["forward"] + times["backward"]) + times["optimizer"]  # of twice the batch
    assert alone["step_time"]["value"] == pytest.approx(expected, rel=0.01)
    assert both["step_time"]["value"] > alone["step_time"]["value"]
    size = sum(4 * tensor.numel for tensor in models.read(folder / "t.json").parameters)
    assert both["payload_tx"]["value"] == pytest.approx(size, rel=0.01)  # 2(N−1)/N of it


def test_a_second_machine_adds_its_profile(folder: Path) -> None:
    first = made(folder, "mine:net")
    (name,) = first["profiles"]
    first["profiles"] = {"t-elsewhere": first["profiles"][name] | {"machine": "a GPU's", "forward": 1.0}}
    (folder / "t.json").write_text(models.text(first), encoding="utf-8")
    second = made(folder, "mine:net")
    assert set(second["profiles"]) == {"t-elsewhere", name}
    assert second["profiles"]["t-elsewhere"]["forward"] == 1.0
    scenario = loads(SCENARIO.format(model="t.json", profile="t-elsewhere"), str(folder / "s.yaml"))
    (sentence,) = origins(scenario)
    assert "profile t-elsewhere: its times are those of another machine, a GPU's, measured 2" in sentence
    assert models.machine() in sentence
    assert origins(loads(SCENARIO.format(model="t.json", profile=name), str(folder / "s.yaml"))) == ()
    machine = "machines: {n1: {compute: {profile: t-elsewhere}}}\n"
    assert len(origins(loads(SCENARIO.format(model="t.json", profile=name) + machine, str(folder / "s.yaml")))) == 1


def test_published_profiles_have_no_origin_to_tell() -> None:
    scenario = loads(SCENARIO.format(model="resnet50", profile="resnet50-gtx1080ti"), "s.yaml")
    assert origins(scenario) == ()


def test_another_batch_is_in_proportion(folder: Path) -> None:
    table = {
        "schema": 2, "name": "x", "source": "", "buffers": [],
        "parameters": [{"name": "w", "shape": [4], "flops": 1.0}],
        "profiles": {
            "p": {
                "batch": 8, "forward": 0.1, "backward": 0.2, "optimizer": 0.01,
                "forward_shares": [1.0], "backward_shares": [1.0],
            }
        },
    }  # fmt: skip
    file = folder / "x.json"
    file.write_text(models.text(table), encoding="utf-8")
    found = pace(ComputeKeys(profile="p"), str(file), 4)
    assert found is not None
    assert (found.forward, found.backward, found.optimizer) == pytest.approx((0.05, 0.1, 0.01))
    assert found.forward_shares == found.backward_shares == (1.0,)


def test_frozen_models_spend_as_much_backward_as_forward() -> None:
    found = pace(ComputeKeys(profile="sd-unet-lora-ascend910"), "sd-unet-lora", 4)
    assert found is not None
    assert found.forward == found.backward
    assert found.step() == pytest.approx(4 / 8.25)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────
REFUSED = {
    "no such name": (
        ["resnet51"],
        "resnet51: find the model: the rig knows no such name; there are cnn, transformer, ",
    ),
    "no such module": (["nowhere.at.all:net"], "import nowhere.at.all: there is no module 'nowhere'"),
    "a module that lacks one": (
        ["needs:net"],
        "import needs: it imports 'nowhere_to_be_found', which is not installed",
    ),
    "a module that is no Python": (["broken:f"], "find the model: SyntaxError"),
    "no such factory": (["mine:nett"], "mine has no 'nett'; did you mean net?"),
    "no factory": (["mine:NOTHING"], "find the factory: NOTHING is a int"),
    "a library that is not installed": (["timm:resnet18"], "import timm: there is no module 'timm'"),
    "a factory with arguments": (["mine:needy"], "call the factory: it needs width, depth; write a function"),
    "a factory that raises": (["mine:raises"], "call the factory: KeyError: 'no such configuration'"),
    "a factory of no module": (["mine:nothing"], "it returned a dict; it must return a torch.nn.Module"),
    "no parameters": (["mine:bare"], "no parameter has requires_grad"),
    "only frozen parameters": (["mine:frozen"], "no parameter has requires_grad"),
    "a download, though hidden": (["mine:downloads"], "it asked for example.org; nothing is downloaded here"),
    "a connection": (["mine:connects"], "it asked for 192.0.2.1; nothing is downloaded here"),
    "a library's own words": (["mine:offline"], "nothing is downloaded here: give a factory that makes random weights"),
    "an input that does not fit": (["mine:net", "--input", "17"], "run it forward: RuntimeError: mat1 and mat2"),
    "too few inputs": (["mine:TwoInputs"], "run it forward: TypeError"),
    "nothing to differentiate": (["mine:Number"], "nothing it returned depends on a parameter"),
    "a dtype nobody exchanges": (
        ["mine:double"],
        "weight is float64; only float32, float16, bfloat16 can be exchanged",
    ),
    "an input that is no shape": (["cnn", "--input", "3*32*32"], "--input '3*32*32': read what one sample is"),
    "no batch": (["cnn", "--batch", "0"], "--batch 0: profile cnn: write one from 1 to 1000000"),
    "no repeats": (["cnn", "--repeats", "0"], "--repeats 0"),
    "an unknown device": (["cnn", "--device", "tpu"], "--device 'tpu': profile cnn: there are auto, cpu, cuda"),
    "an unknown optimizer": (["cnn", "--optimizer", "lion"], "there are sgd, adamw"),
    "a folder that is none": (["cnn", "--out", "no/where/t.json"], "there is no folder no/where"),
    "a name no scenario takes": (["cnn", "--out", "t.yaml"], "t.yaml: write a layer table: its name must end in .json"),
    "a file of something else": (["cnn", "--out", "other.json"], "other.json: write a layer table: something else is"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_bad_input_is_exit_2_and_one_sentence(folder: Path, what: str) -> None:
    arguments, said = REFUSED[what]
    before = sorted(path.name for path in folder.iterdir())
    answer = profile(folder, *arguments)
    assert answer.returncode == 2, answer.stderr
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


def test_other_tensors_are_not_mixed(folder: Path) -> None:
    made(folder, "mine:net")
    answer = profile(folder, "mine:Words", "--out", folder / "t.json")
    assert answer.returncode == 2
    assert "the table there is of other tensors than mine:Words" in answer.stderr


def test_a_gpu_that_is_not_there(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    answer = profile(folder, "cnn", "--device", "cuda")
    assert answer.returncode == 2
    assert "find a GPU for --device cuda" in answer.stderr


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "no 'schema'"), ('{"schema": 7}', "its schema is 7"), ("", "Expecting")]
)
def test_a_scenario_with_a_damaged_table_says_where(folder: Path, text: str, said: str) -> None:
    (folder / "t.json").write_text(text, encoding="utf-8")
    (folder / "mine.yaml").write_text(SCENARIO.format(model="t.json", profile="p"), encoding="utf-8")
    answer = rig("plan", folder / "mine.yaml")
    assert answer.returncode == 2
    assert "mine.yaml:4:" in answer.stderr and said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_process_that_dies_is_no_riddle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "dies.py").write_text("import os, signal\ndef net():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="signal 9 ended it, as the kernel does where memory runs out"):
        profiling.make(profiling.Request("dies:net"))


def test_nothing_heavy_is_imported_by_the_verb() -> None:
    code = "import sys, rig.profiling; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
