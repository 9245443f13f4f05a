"""What nodes do, as a case holds it: models, paces, and a dataclass for each kind of workload. No I/O, no clock, no
defaults left to guess. Sizes are bytes; spans are float seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rig.units import Fraction, Size

WIDTHS: Mapping[str, int] = {"float32": 4, "int64": 8, "float16": 2, "bfloat16": 2}  # bytes of an element


@dataclass(frozen=True)
class Tensor:
    """One parameter or buffer of a model, in registration order."""

    name: str
    shape: tuple[int, ...]
    flops: float = 0.0  # share of the model's forward FLOPs, 0 to 1
    dtype: str = "float32"

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * WIDTHS[self.dtype]


@dataclass(frozen=True)
class LayerTable:
    """A model's tensors, and the one-machine speeds known for it."""

    name: str
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    profiles: Mapping[str, Mapping[str, Any]]  # name → {"throughput": samples/s, "optimizer": s, "source": …}


@dataclass(frozen=True)
class Pace:
    """How long one machine computes on one micro-batch, and its optimizer once (seconds, undilated), and what of it
    each parameter tensor takes, in registration order (shares of 1; none given: the layer table's FLOP shares).
    """

    forward: float
    backward: float
    optimizer: float
    forward_shares: tuple[float, ...] = ()
    backward_shares: tuple[float, ...] = ()

    def step(self, accumulate: int = 1) -> float:
        """A whole step by itself, of so many micro-batches (s)."""
        return accumulate * (self.forward + self.backward) + self.optimizer


@dataclass(frozen=True)
class Job:
    """All that is to be trained: so many samples, of all nodes together, or so many steps; one of the two is 0."""

    samples: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Workload:
    """What every kind of workload has: steps that count, and steps before them that do not."""

    kind: ClassVar[str]
    steps: int
    warmup: int

    @property
    def reads(self) -> tuple[str, ...]:
        """What of the machine's own files its ranks read: whole paths."""
        return ()


Method = Literal[
    "allreduce", "fp16", "bf16", "powersgd", "topk", "quantized",  # every step, as DDP's communication hooks
    "local_sgd", "hierarchical", "diloco",  # parameters, every so many steps
    "parameter_server",
]  # fmt: skip


Precision = Literal["float32", "bfloat16", "float16"]
Optimizer = Literal["sgd", "adamw"]  # sgd: with a momentum of 0.9


@dataclass(frozen=True)
class Exchange:
    """How nodes keep one model: what is sent, and after how many steps. What a method has no use for stays as it is."""

    method: Method = "allreduce"
    every: int = 1  # steps from one exchange to the next
    rank: int = 4  # of PowerSGD's factors
    share: Fraction = Fraction(10**9)  # of the gradients, that top-k sends
    group: int = 0  # nodes that average among themselves every `every` steps, all of them every `every_all`
    every_all: int = 1
    outer_lr: float = 0.7  # DiLoCo's outer optimizer, SGD with Nesterov momentum (arXiv 2311.08105)
    outer_momentum: float = 0.9

    @property
    def period(self) -> int:
        """Steps after which everything repeats."""
        return self.every_all if self.method == "hierarchical" else self.every


Device = Literal["auto", "cpu", "cuda"]
Backend = Literal["gloo", "nccl"]
Algorithm = Literal["ring", "tree", "auto"]


@dataclass(frozen=True)
class Devices:
    """Where ranks compute, and which library carries their collectives."""

    device: Device = "cpu"  # auto: a node's GPU where it has one
    backend: Backend = "gloo"
    algorithm: Algorithm = "ring"  # of NCCL's all-reduce; auto: what NCCL chooses


Source = Literal["digits", "cifar10", "cifar100", "images", "text", "topics"]


@dataclass(frozen=True)
class Data:
    """What real compute learns from. The digits ship with the rig, the topics with Python."""

    source: Source = "digits"
    path: str = ""  # a folder, or a file of text; empty where there is none
    size: int = 0  # pixels along an edge that images are resized to, or tokens of a window of text; 0 where it is fixed


@dataclass(frozen=True)
class Ddp(Workload):
    """PyTorch DistributedDataParallel over gloo, or another way to exchange."""

    kind = "ddp"
    model: str
    compute: Literal["real", "paced"]
    table: LayerTable
    bucket_cap: Size  # DDP's bucket_cap_mb; its first bucket is 1 MiB
    seed: int
    lr: float  # of one node
    data: Data
    folder: str = ""  # the scenario file's, where the model is a factory, to be imported from there
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"  # how the rate grows with the nodes' joint batch
    lr_warmup: int = 0  # steps until it has grown so far
    evaluate: int = 0  # steps from one evaluation on held-out samples to the next; 0: after the last step only
    target_loss: float | None = None  # of held-out samples; the time until it is reached is a metric
    accumulate: int = 1  # micro-batches a step: gradients are exchanged in the last one's backward pass only
    job: Job | None = None
    exchange: Exchange = Exchange()
    precision: Precision = "float32"  # of parameters, and so of gradients
    optimizer: Optimizer = "sgd"
    devices: Devices = Devices()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(path for path in (self.folder, self.data.path) if path)


@dataclass(frozen=True)
class Script(Workload):
    """A command of the user's own, on every node. Here `steps` 0 means that all of them count."""

    kind = "script"
    command: tuple[str, ...]
    folder: str  # the scenario file's: where the command runs
    files: Literal["mounted", "copied"]  # the folder itself, read-only, or a copy for each node
    torchrun: bool  # whether torchrun starts a node's ranks
    batch: int = 0  # samples of a rank and step, as far as the scenario tells; 0 where it does not

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.folder,)


@dataclass(frozen=True)
class Allreduce(Workload):
    """One all-reduce of `size` bytes (float32) a step."""

    kind = "allreduce"
    size: Size
    devices: Devices = Devices()
