"""What real compute learns: a model, this rank's share of the data, samples that are held out, and a loss.

The model is one of the rig's own or what a factory returns. `module(inputs)` gives logits, which are compared with
labels by cross entropy, or a scalar, which is the loss itself.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rig.errors import RigError, WorkloadError
from rig.workloads import factories
from rig.workloads.data import load
from rig.workloads.job import Seat
from rig.workloads.rates import factor, learning_rate
from rig.workloads.samples import Samples

MOST_HELD_OUT = 1000  # samples that one evaluation looks at, spread evenly over all that are held out
CHUNK = 100  # of them at once
LIBRARIES = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
TRIED = 2  # samples that a model is tried with before it trains


class Task:
    """One rank's part of the learning; its model starts the same on every rank, its samples are its own."""

    def __init__(self, job: dict[str, Any], seat: Seat) -> None:
        """Raises WorkloadError for a model that cannot be made or trained on this data, and for data that are wrong."""
        torch.manual_seed(job["seed"])
        samples, held_out = load(job["data"])
        self.net = made(job["model"], job["folder"])
        try_out(job["model"], self.net, samples)
        self.net.to(seat.device)
        self.trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self._held_out = held_out.thinned(MOST_HELD_OUT).on(seat.device)
        self._drawn_on = [seat.device] if seat.device.type == "cuda" else []  # random numbers, beside the CPU's
        self._shard = samples.shard(seat.rank, seat.size, job["seed"]).on(seat.device)
        self._shard.touch(job["batch"] * (job["warmup"] + job["steps"]))
        self._seed, self._taken = job["seed"], 0
        self._lr = (job["lr"], factor(job["lr_scaling"], seat.size), job["lr_warmup"])
        torch.manual_seed(job["seed"] + seat.rank)  # what a model draws in its forward pass differs from rank to rank

    def learning_rate(self, step: int) -> float:
        """Of a step, counted from 0."""
        return learning_rate(step, *self._lr)

    def loss(self, module: nn.Module, count: int) -> torch.Tensor:
        """The mean loss of this rank's next `count` samples."""
        inputs, labels = self._shard.batch(self._taken, count)
        self._taken += count
        return mean_loss(module(inputs), labels)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float | None]:
        """Mean loss of the held-out samples, and of their labels the share that is found; None where the model gives a
        loss and no logits. What the model draws in its forward pass is the same each time.
        """
        loss, right, seen = 0.0, 0, 0
        self.net.eval()
        with torch.random.fork_rng(devices=self._drawn_on):
            torch.manual_seed(self._seed)
            for first in range(0, len(self._held_out), CHUNK):
                count = min(CHUNK, len(self._held_out) - first)
                inputs, labels = self._held_out.batch(first, count)
                output = tensor_of(self.net(inputs))
                loss += mean_loss(output, labels).item() * count
                if output.dim():
                    right += int((output.argmax(dim=-1) == labels).sum())
                    seen += labels.numel()
        self.net.train()
        return {"held_out_loss": loss / len(self._held_out), "accuracy": right / seen if seen else None}


def due(job: dict[str, Any], step: int) -> bool:
    """Whether a step, counted from 0, is followed by an evaluation: every so many, and the last."""
    done, every = step + 1, int(job["evaluate"])
    return done == job["warmup"] + job["steps"] or (every > 0 and done % every == 0)


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────
def tensor_of(output: Any) -> torch.Tensor:
    """What a model returned, as one tensor: transformers' models wrap their logits. Raises WorkloadError."""
    found = getattr(output, "logits", output)
    if not isinstance(found, torch.Tensor):
        raise WorkloadError(f"it returned a {type(output).__name__}; it must return logits, or a loss of no dimension")
    return found


def mean_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits (n, …, classes) with labels (n, …); a scalar is the loss itself."""
    found = tensor_of(output)
    return functional.cross_entropy(found.flatten(0, -2).float(), labels.flatten()) if found.dim() else found


# ── the model ────────────────────────────────────────────────────────────────────────────────────────
def made(name: str, folder: str) -> nn.Module:
    """The model of that name, with random weights; `folder` is where a user's own module lies. Raises WorkloadError."""
    sys.dont_write_bytecode = True  # the folder is its owner's, and may be read-only
    sys.path += [folder] if folder else []
    factories.stay_offline()
    with Attempt(name, "import it", "it must be found from the scenario file's folder"):
        build = factories.factory(name)
    with Attempt(name, "call the factory", "it must work without arguments and without a network"):
        return factories.built(build())


def try_out(name: str, net: nn.Module, samples: Samples) -> None:
    """Raise WorkloadError unless the model learns from a few samples: logits that fit the labels, or a loss, and a
    gradient for all that is trained, else DDP would wait for it in vain. Model and random numbers stay as they were.
    """
    kept = [buffer.clone() for buffer in net.buffers()]  # running means
    inputs, labels = samples.batch(0, TRIED)
    with torch.random.fork_rng(devices=[]):
        with Attempt(name, f"call it with {shape_of(inputs)}", f"one argument, a batch of {TRIED} samples, must do"):
            output = tensor_of(net(inputs))
        check_shape(name, output, labels, samples.classes)
        with Attempt(name, "run it backward", "what it returns must depend on what is trained"):
            mean_loss(output, labels).backward()  # type: ignore[no-untyped-call]
    silent = [key for key, one in net.named_parameters() if one.requires_grad and one.grad is None]
    if silent:
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        raise WorkloadError(
            f"model {name}: run it backward: {silent[0]}{more} got no gradient, so DDP would wait for it in vain; "
            "use it in forward, or set its requires_grad to False"
        )
    net.zero_grad(set_to_none=True)
    for buffer, value in zip(net.buffers(), kept, strict=True):
        buffer.copy_(value)


def check_shape(name: str, output: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
    """Raise WorkloadError unless it is a scalar, or has logits for every label and for every class there is."""
    fits = output.shape[:-1] == labels.shape and output.shape[-1] >= classes if output.dim() else True
    if not fits:
        wanted = "x".join(map(str, [*labels.shape, classes]))
        raise WorkloadError(
            f"model {name}: compare what it returns with the labels: it has the shape {shape_of(output)}, and the data "
            f"have {classes} classes; return logits of {wanted}, or a scalar, the loss itself"
        )


def shape_of(tensor: torch.Tensor) -> str:
    """Such as 2x3x32x32."""
    return "x".join(map(str, tensor.shape))


class Attempt:
    """Whatever a user's own code raises within becomes one sentence with the line that raised it: a WorkloadError."""

    def __init__(self, name: str, attempted: str, advice: str) -> None:
        self._name, self._attempted, self._advice = name, attempted, advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, RigError):
            raise WorkloadError(f"model {self._name}: {error}") from error
        if isinstance(error, Exception):
            said = (str(error).splitlines() or [""])[0][:300]
            what = f"{type(error).__name__}: {said}{_place(trace)}"
            raise WorkloadError(f"model {self._name}: {self._attempted}: {what}; {self._advice}") from error


def _place(trace: TracebackType | None) -> str:
    """The last line that was run of the user's own; nothing where only libraries and the rig were."""
    own = [line for line in extract_tb(trace) if not line.filename.startswith(("<", *LIBRARIES))]
    return f" (at {Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
