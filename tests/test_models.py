"""The layer tables: true to the models they stand for, readable without torch, and never stale."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from rig import models
from rig.errors import UsageError
from rig.workloads import REAL_MODELS, WORKLOADS
from rig.workloads.nets import NETS

ROOT = Path(__file__).resolve().parent.parent

COUNTED = {  # model → parameters, their tensors, buffers
    "resnet18": (11_689_512, 62, 60),  # these four as torchvision counts them
    "resnet50": (25_557_032, 161, 159),
    "resnet152": (60_192_808, 467, 465),
    "vgg16": (138_357_544, 32, 0),
    "vgg16-cifar": (14_728_266, 54, 39),
    "vit-b16": (86_567_656, 200, 0),
    "bert-base": (109_482_240, 199, 2),
    "gpt2": (124_439_808, 148, 0),
    "vgg16-half": (35_617_672, 32, 0),
    "vgg16-quarter": (9_418_936, 32, 0),
    "sd-unet": (859_520_964, 686, 0),
    "sd-unet-lora": (797_184, 256, 0),
}
ROUNDED = {"vgg16-cifar": 14.73e6, "bert-base": 110e6, "gpt2": 124.4e6}  # as docs/facts.md, Sizes, has them
GFLOPS = {  # of a sample's forward pass by the literature, and a tensor whose own are plain arithmetic
    "resnet50": (8.2, "conv1.weight", 2 * 64 * 112**2 * 3 * 7**2),
    "vit-b16": (35.1, "vit.layers.0.mlp.fc1.weight", 2 * 197 * 768 * 3072),
    "bert-base": (22.4, "encoder.layer.0.intermediate.dense.weight", 2 * 128 * 768 * 3072),
    "gpt2": (292, "transformer.h.0.mlp.c_fc.weight", 2 * 1024 * 768 * 3072),
}


MEASURED = {
    "batch": 8, "forward": 0.1, "backward": 0.2, "optimizer": 0.01,
    "forward_shares": [0.5, 0.5], "backward_shares": [0.25, 0.75],
}  # fmt: skip


def _table(**changes: Any) -> dict[str, Any]:
    """A small table that can be read, but for these changes."""
    tensors = [{"name": name, "shape": [4], "flops": 0.5} for name in ("w", "b")]
    return {"schema": 2, "name": "x", "source": "", "profiles": {}, "parameters": tensors, "buffers": []} | changes


@pytest.mark.parametrize("name", COUNTED)
def test_counts_are_the_libraries(name: str) -> None:
    table = models.load(name)
    found = (sum(tensor.numel for tensor in table.parameters), len(table.parameters), len(table.buffers))
    assert found == COUNTED[name]
    assert found[0] == pytest.approx(ROUNDED.get(name, found[0]), rel=0.006)


def test_every_table_is_counted() -> None:
    assert set(models.names()) == {*COUNTED, *REAL_MODELS}


@pytest.mark.parametrize("name", models.names())
def test_shares_add_up_to_one(name: str) -> None:
    shares = [tensor.flops for tensor in models.load(name).parameters]
    assert min(shares) >= 0
    assert sum(share == 0 for share in shares) <= 2  # a class token and positions, which are but added
    assert sum(shares) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("name", GFLOPS)
def test_shares_are_of_the_published_flops(name: str) -> None:
    """What is published of the whole model, against one layer's own arithmetic and its share."""
    whole, tensor, own = GFLOPS[name]
    (share,) = (one.flops for one in models.load(name).parameters if one.name == tensor)
    assert own / share == pytest.approx(whole * 1e9, rel=0.01)


def test_adapters_take_the_whole_models_time() -> None:
    """LoRA trains 0.1 % of the parameters, and its tensors' shares are spread over all of the model."""
    shares = {one.name.partition(".")[0]: 0.0 for one in models.load("sd-unet-lora").parameters}
    for one in models.load("sd-unet-lora").parameters:
        shares[one.name.partition(".")[0]] += one.flops
    whole = {name: 0.0 for name in shares}
    for one in models.load("sd-unet").parameters:
        part = one.name.partition(".")[0]
        whole[part] = whole.get(part, 0.0) + one.flops
    assert set(shares) == {"down_blocks", "mid_block", "up_blocks"}
    assert shares["up_blocks"] == pytest.approx(whole["up_blocks"], abs=0.1)
    assert shares["down_blocks"] == pytest.approx(whole["down_blocks"], abs=0.1)


@pytest.mark.parametrize("name", REAL_MODELS)
def test_table_is_the_network(name: str) -> None:
    table, net = models.load(name), NETS[name]()
    assert [(t.name, t.shape) for t in table.parameters] == [(n, tuple(p.shape)) for n, p in net.named_parameters()]
    assert [(t.name, t.shape, f"torch.{t.dtype}") for t in table.buffers] == [
        (n, tuple(b.shape), str(b.dtype)) for n, b in net.named_buffers()
    ]
    assert 2**20 < sum(tensor.nbytes for tensor in table.parameters) < 3 * 2**20


def test_files_are_what_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("make_tables", ROOT / "scripts" / "make_tables.py")
    assert spec is not None and spec.loader is not None
    script = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_tables", script)  # dataclasses look their module up there
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.main()
    written = {path.stem: path.read_text() for path in tmp_path.glob("*.json")}
    assert {"cnn", "transformer", "resnet152", "vgg16-cifar"} <= set(written)
    assert written == {name: (ROOT / "rig" / "models" / f"{name}.json").read_text() for name in written}


def test_every_profile_says_where_it_comes_from() -> None:
    """A figure of another's is a page that can be looked up, what it was measured with, and a time that makes sense."""
    profiles = {name: profile for model in models.names() for name, profile in models.load(model).profiles.items()}
    assert {name: None for name in profiles}.keys() >= {"resnet18-gtx1080", "resnet50-gtx1080ti", "vgg16-p100"}
    for model in COUNTED:
        assert models.load(model).profiles, model
        assert all(name.startswith(f"{model}-") for name in models.load(model).profiles)
    for name, profile in profiles.items():
        assert profile["source"].startswith("https://"), name
        assert profile["note"], name
        assert 0 <= profile["optimizer"] < 32 / profile["throughput"], name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"model 'resnet5': there is none; did you mean 'resnet50'\? known: bert-base, cnn, "
    ):
        models.load("resnet5")
    with pytest.raises(UsageError, match="there is none"):
        models.load("../models/cnn")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting"),
        ("[]", "list indices"),
        (json.dumps({"schema": 3}), "its schema is 3, this rig reads 1 and 2"),
        (json.dumps({"schema": 1, "name": "x"}), "no 'parameters'"),
        (json.dumps(_table(parameters=[])), "it has no parameters"),
        (json.dumps(_table(parameters=[{"name": "w", "shape": [-1]}])), "w has the shape"),
        (json.dumps(_table(parameters=[{"name": "w", "shape": "22"}])), "w has the shape 22"),
        (json.dumps(_table(parameters=[{"name": "w", "shape": [2], "dtype": "int7"}])), "w is 'int7'"),
        (json.dumps(_table(parameters=[{"name": "w", "shape": [2], "flops": 2}])), "w has a share of 2"),
        (json.dumps(_table(profiles={"p": {"throughput": -1, "optimizer": 0}})), "profile p: throughput is -1"),
        (json.dumps(_table(profiles={"p": {"optimizer": 0}})), "no 'batch'"),
        (json.dumps(_table(profiles={"p": MEASURED | {"forward": 0}})), "profile p: forward is 0"),
        (json.dumps(_table(profiles={"p": MEASURED | {"optimizer": -1}})), "profile p: optimizer is -1"),
        (json.dumps(_table(profiles={"p": MEASURED | {"forward_shares": [1]}})), "1 entries for 2 tensors"),
        (json.dumps(_table(profiles={"p": MEASURED | {"backward_shares": [1, 1]}})), "adds up to 2, not to 1"),
        (json.dumps(_table(profiles=[])), "no attribute 'items'"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"x.json: read a layer table: .*{said}"):
        models.read(path)


def test_a_table_of_either_schema_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(models.text(_table(profiles={"p": MEASURED})))
    assert models.read(path).profiles["p"] == MEASURED
    assert "[0.5, 0.5]" in path.read_text()  # on one line
    path.write_text(json.dumps(_table(schema=1, profiles={"p": {"throughput": 10, "optimizer": 0}})))
    assert [tensor.name for tensor in models.read(path).parameters] == ["w", "b"]


def test_tables_are_read_without_torch() -> None:
    code = "import sys, rig.models, rig.workloads; rig.models.load('vgg16'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_workloads_name_modules_that_exist() -> None:
    for module in WORKLOADS.values():
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
