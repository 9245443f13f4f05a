"""Write the layer tables in rig/models: `python scripts/make_tables.py`, from the repository's root.

ResNets and VGG-16 are built here from the shapes in their papers (arXiv 1512.03385, 1409.1556), with torchvision's
names and registration order, at 224 × 224. The rig's own two networks are walked with torch. Models that need a library
are in make_library_tables.py. A multiply and an add count as two FLOPs; a bias, a norm's weight and a norm's bias count
one per output element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rig import models
from rig.workloads.nets import CHANNELS, NETS

FOLDER = Path(__file__).resolve().parent.parent / "rig" / "models"


@dataclass
class Shapes:
    """A model under construction: its tensors so far, and the edge of the feature map in pixels."""

    edge: int = 224
    parameters: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[dict[str, Any]] = field(default_factory=list)

    def parameter(self, name: str, shape: list[int], flops: float) -> None:
        """Register a float32 parameter with its absolute forward FLOPs per sample."""
        self.parameters.append({"name": name, "shape": shape, "dtype": "float32", "flops": flops})

    def conv(self, name: str, channels: tuple[int, int], kernel: int, stride: int = 1, bias: bool = False) -> None:
        """A square convolution with "same" padding; the edge shrinks by its stride."""
        inputs, outputs = channels
        self.edge = -(-self.edge // stride)
        elements = outputs * self.edge**2
        self.parameter(f"{name}.weight", [outputs, inputs, kernel, kernel], 2 * elements * inputs * kernel**2)
        if bias:
            self.parameter(f"{name}.bias", [outputs], elements)

    def norm(self, name: str, channels: int) -> None:
        """A BatchNorm2d: two parameters, three buffers."""
        for part in ("weight", "bias"):
            self.parameter(f"{name}.{part}", [channels], channels * self.edge**2)
        for part in ("running_mean", "running_var"):
            self.buffers.append({"name": f"{name}.{part}", "shape": [channels], "dtype": "float32"})
        self.buffers.append({"name": f"{name}.num_batches_tracked", "shape": [], "dtype": "int64"})

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        """A fully connected layer with a bias."""
        self.parameter(f"{name}.weight", [outputs, inputs], 2 * inputs * outputs)
        self.parameter(f"{name}.bias", [outputs], outputs)

    def pool(self) -> None:
        """A pooling layer of stride two."""
        self.edge = -(-self.edge // 2)


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> Shapes:
    """A residual network for 1000 classes; the stride of a bottleneck is in its 3 × 3, as in torchvision."""
    shapes = Shapes()
    shapes.conv("conv1", (3, 64), 7, 2)
    shapes.norm("bn1", 64)
    shapes.pool()
    inputs = 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layer{stage + 1}.{block}"
            inputs = residual(shapes, name, (inputs, 64 * 2**stage), stride, bottleneck)
    shapes.linear("fc", inputs, 1000)
    return shapes


def residual(shapes: Shapes, name: str, channels: tuple[int, int], stride: int, bottleneck: bool) -> int:
    """One residual block; returns the channels that leave it."""
    inputs, width = channels
    outputs = 4 * width if bottleneck else width
    before = shapes.edge
    if bottleneck:
        plan = [((inputs, width), 1, 1), ((width, width), 3, stride), ((width, outputs), 1, 1)]
    else:
        plan = [((inputs, width), 3, stride), ((width, width), 3, 1)]
    for number, (pair, kernel, step) in enumerate(plan, 1):
        shapes.conv(f"{name}.conv{number}", pair, kernel, step)
        shapes.norm(f"{name}.bn{number}", pair[1])
    if stride != 1 or inputs != outputs:
        shapes.edge = before
        shapes.conv(f"{name}.downsample.0", (inputs, outputs), 1, stride)
        shapes.norm(f"{name}.downsample.1", outputs)
    return outputs


def vgg16(divisor: int = 1) -> Shapes:
    """VGG, configuration D, without BatchNorm; all widths but the number of classes are divided by `divisor`.

    Layer numbers count activations and pools, as torchvision's do.
    """
    shapes, number, inputs = Shapes(), 0, 3
    for stage in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for width in stage:
            outputs = width // divisor
            shapes.conv(f"features.{number}", (inputs, outputs), 3, bias=True)
            number, inputs = number + 2, outputs
        shapes.pool()
        number += 1
    hidden = 4096 // divisor
    for place, pair in ((0, (inputs * 7 * 7, hidden)), (3, (hidden, hidden)), (6, (hidden, 1000))):
        shapes.linear(f"classifier.{place}", *pair)
    return shapes


def narrow(divisor: int) -> dict[str, Any]:
    """The speed of a narrower VGG-16, which nobody published: the whole one's, by the FLOPs of a forward pass."""
    whole, part = vgg16(), vgg16(divisor)
    ratio = sum(entry["flops"] for entry in whole.parameters) / sum(entry["flops"] for entry in part.parameters)
    parameters = sum(math.prod(entry["shape"]) for entry in part.parameters)
    return {
        "throughput": round(VGG16_SPEED * ratio, 1),
        "optimizer": sgd_seconds(parameters, 732e9),
        "source": f"{HOROVOD} (one P100, of the whole vgg16)",
        "note": f"not published: {VGG16_SPEED} samples/s x {ratio:.3f}, the ratio of FLOPs; {SGD} 732 GB/s (P100)",
    }


def vgg16_cifar() -> Shapes:
    """VGG-16 as it is trained on CIFAR-10: 32 × 32, BatchNorm behind every convolution, one fully connected layer.

    As in github.com/kuangliu/pytorch-cifar, models/vgg.py; layer numbers count norms, activations and pools.
    """
    shapes, number, inputs = Shapes(edge=32), 0, 3
    for stage in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for outputs in stage:
            shapes.conv(f"features.{number}", (inputs, outputs), 3, bias=True)
            shapes.norm(f"features.{number + 1}", outputs)
            number, inputs = number + 3, outputs
        shapes.pool()
        number += 1
    shapes.linear("classifier", 512, 10)
    return shapes


def walked(name: str) -> Shapes:
    """One of the rig's own networks, its FLOPs seen by one forward pass over a digit."""
    net, flops = NETS[name](), dict[str, float]()
    for path, module in net.named_modules():
        if list(module.parameters(recurse=False)) and path:
            module.register_forward_hook(counted(path, flops))
    net.eval()(torch.zeros(1, CHANNELS, 8, 8))
    shapes = Shapes()
    for path, parameter in net.named_parameters():  # a bare parameter is added once: one FLOP an element
        shapes.parameter(path, list(parameter.shape), flops.get(path, float(parameter.numel())))
    for path, buffer in net.named_buffers():
        shapes.buffers.append(
            {"name": path, "shape": list(buffer.shape), "dtype": str(buffer.dtype).removeprefix("torch.")}
        )
    return shapes


def counted(path: str, flops: dict[str, float]) -> Any:
    """A forward hook that notes the FLOPs of a module's own parameters: a matrix is used once per output column."""

    def hook(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            per_element = 2 * parameter[0].numel() if parameter.dim() > 1 else 1
            flops[f"{path}.{name}"] = float(output.numel() * per_element)

    return hook


def sgd_seconds(parameters: int, bandwidth: float) -> float:
    """SGD with momentum reads p, g, m and writes p, m: 5 × 4 bytes a parameter through the card's memory (B/s)."""
    return round(5 * 4 * parameters / bandwidth, 6)


RESNET18, RESNET50, RESNET152, VGG16 = 11_689_512, 25_557_032, 60_192_808, 138_357_544  # as torchvision counts them
VGG16_CIFAR = 14_728_266
VGG16_SPEED = 130.9  # samples/s on a P100
HOROVOD = "https://github.com/horovod/horovod/pull/44"
SGD = "optimizer: SGD with momentum moves 5 x 4 bytes a parameter through"

TIMM = "https://github.com/huggingface/pytorch-image-models (results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv)"

PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "resnet18": {
        "resnet18-gtx1080": {
            # 16 images took 47.07 ms forward and backward; a step adds the optimizer
            "throughput": round(16 / (47.07e-3 + sgd_seconds(RESNET18, 320e9)), 1),
            "optimizer": sgd_seconds(RESNET18, 320e9),
            "source": "https://github.com/jcjohnson/cnn-benchmarks (README, ResNet-18, GTX 1080, cuDNN 5.0, fp32)",
            "note": f"published: 47.07 ms forward and backward at batch 16; {SGD} 320 GB/s (GTX 1080)",
        }
    },
    "resnet50": {
        "resnet50-gtx1080ti": {
            "throughput": 171.0,
            "optimizer": sgd_seconds(RESNET50, 484e9),
            "source": "https://github.com/horovod/horovod/issues/752 (one GTX 1080 Ti, fp32)",
            "note": f"{SGD} 484 GB/s (GTX 1080 Ti)",
        }
    },
    "resnet152": {
        "resnet152-gtx1080": {
            # 16 images took 328.90 ms forward and backward; a step adds the optimizer
            "throughput": round(16 / (328.90e-3 + sgd_seconds(RESNET152, 320e9)), 1),
            "optimizer": sgd_seconds(RESNET152, 320e9),
            "source": "https://github.com/jcjohnson/cnn-benchmarks (README, ResNet-152, GTX 1080, cuDNN 5.0, fp32)",
            "note": f"published: 328.90 ms forward and backward at batch 16; {SGD} 320 GB/s (GTX 1080)",
        },
        "resnet152-rtx3090-amp": {
            "throughput": 501.4,
            "optimizer": sgd_seconds(RESNET152, 936e9),
            "source": f"{TIMM}, resnet152",
            "note": f"published: mixed precision, channels last, batch 192; {SGD} 936 GB/s (RTX 3090)",
        },
    },
    "vgg16-cifar": {
        "vgg16-cifar-titanx": {
            "throughput": 1540.0,
            "optimizer": sgd_seconds(VGG16_CIFAR, 336e9),
            "source": "https://github.com/PaddlePaddle/Paddle/issues/6814 (VGG16 on cifar10, TensorFlow, Titan X)",
            "note": "published: batch 128; its classifier was another (two layers of 512); "
            f"{SGD} 336 GB/s (Titan X, Maxwell's)",
        }
    },
    "vgg16": {
        "vgg16-p100": {
            "throughput": VGG16_SPEED,
            "optimizer": sgd_seconds(VGG16, 732e9),
            "source": f"{HOROVOD} (one P100)",
            "note": f"{SGD} 732 GB/s (P100)",
        }
    },
    "vgg16-half": {"vgg16-half-p100": narrow(2)},
    "vgg16-quarter": {"vgg16-quarter-p100": narrow(4)},
}

SOURCES = {
    "resnet18": "He et al., arXiv 1512.03385, as registered by torchvision; FLOPs at 224 x 224",
    "resnet50": "He et al., arXiv 1512.03385, with the stride in the 3 x 3 (v1.5), as torchvision; FLOPs at 224 x 224",
    "resnet152": "He et al., arXiv 1512.03385, with the stride in the 3 x 3 (v1.5), as torchvision; FLOPs at 224 x 224",
    "vgg16-cifar": "VGG-16 with BatchNorm and one linear layer, as kuangliu/pytorch-cifar; FLOPs at 32 x 32",
    "vgg16": "Simonyan and Zisserman, arXiv 1409.1556, configuration D, as torchvision; FLOPs at 224 x 224",
    "vgg16-half": "vgg16 with half of its channels and of its hidden features; FLOPs at 224 x 224",
    "vgg16-quarter": "vgg16 with a quarter of its channels and of its hidden features; FLOPs at 224 x 224",
    "cnn": "rig/workloads/nets.py: Cnn; FLOPs at 8 x 8",
    "transformer": "rig/workloads/nets.py: Transformer; FLOPs at 8 x 8",
}


def document(name: str, shapes: Shapes) -> dict[str, Any]:
    """The table as it is written: FLOPs become shares of the whole."""
    whole = sum(entry["flops"] for entry in shapes.parameters)
    parameters = [{**entry, "flops": round(entry["flops"] / whole, 12)} for entry in shapes.parameters]
    return {
        "schema": 1,
        "name": name,
        "source": SOURCES[name],
        "parameters": parameters,
        "buffers": shapes.buffers,
        "profiles": PROFILES.get(name, {}),
    }


def main() -> None:
    """Write every table."""
    tables = {
        "resnet18": resnet((2, 2, 2, 2), bottleneck=False),
        "resnet50": resnet((3, 4, 6, 3), bottleneck=True),
        "resnet152": resnet((3, 8, 36, 3), bottleneck=True),
        "vgg16": vgg16(),
        "vgg16-half": vgg16(2),
        "vgg16-quarter": vgg16(4),
        "vgg16-cifar": vgg16_cifar(),
        **{name: walked(name) for name in NETS},
    }
    for name, shapes in tables.items():
        (FOLDER / f"{name}.json").write_text(models.text(document(name, shapes)), encoding="utf-8")


if __name__ == "__main__":
    main()
