"""A model by its name, with random weights, and something to feed it: never a byte from the network.

MODEL is one of the rig's own networks, `package.module:factory`, or LIBRARY:NAME of a library that is installed.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn

from rig.errors import UsageError
from rig.workloads.layers import EXCHANGED, dtype, trained
from rig.workloads.nets import NETS, TEXT_NETS

LOCAL = ("localhost", "127.0.0.1", "::1")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
DEFAULT_INPUTS = {name: {"shape": [3, 32, 32], "kind": "float"} for name in NETS}  # CIFAR-10's images
TOKENS = 128
IMAGE = 224
LEAST_WORDS = 1000  # what whole numbers stay below where no embedding says how many there are

Input = dict[str, Any]  # {"shape": [3, 224, 224] of one sample, "kind": "float" or "int"}


class Download(BaseException):
    """Something asked for the network. No Exception, so that no library takes it for a fault it may hide."""


# ── no network ───────────────────────────────────────────────────────────────────────────────────────
def forbid_network() -> None:
    """From now on, this process raises Download where it would ask for a name or a connection outside itself."""
    stay_offline()
    sys.addaudithook(_watch)


def stay_offline() -> None:
    """Tell the libraries that can download to say at once that they may not."""
    os.environ.update(dict.fromkeys(OFFLINE, "1"))


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook (PEP 578): of socket.getaddrinfo(host, …) and socket.connect(socket, address)."""
    host = None
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if host and host not in LOCAL:
        raise Download(host)


# ── models ───────────────────────────────────────────────────────────────────────────────────────────
def factory(model: str) -> Callable[[], Any]:
    """What makes the model, to be called without arguments. Raises UsageError when there is no such thing."""
    own = NETS | TEXT_NETS
    if model in own:
        return own[model]
    module, _, name = model.partition(":")
    if not module or not name:
        known = f"{', '.join(own)}, package.module:factory, {', '.join(f'{library}:NAME' for library in LIBRARIES)}"
        raise UsageError(f"find the model: the rig knows no such name; there are {known}")
    found = LIBRARIES.get(module, _own)(module, name)
    if missing := _missing(found):
        needed = ", ".join(missing)
        raise UsageError(f"call the factory: it needs {needed}; write a function without arguments that calls it")
    return found


def _missing(found: Callable[[], Any]) -> list[str]:
    """Arguments that have no default."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # of a callable written in C
        return []
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in loose]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = error.name or ""
        if name == wanted or name.startswith(f"{wanted}."):
            what = f"there is no module {wanted!r}; name one that can be imported from here, or install it"
        else:
            what = f"it imports {wanted!r}, which is not installed; install it"
        raise UsageError(f"import {name}: {what}") from error


def _own(module: str, name: str) -> Callable[..., Any]:
    """A function or class of any module; dots lead into classes."""
    found = _module(module)
    for word in name.split("."):
        if not hasattr(found, word):
            close = get_close_matches(word, [one for one in dir(found) if not one.startswith("_")], n=1)
            way_out = f"did you mean {close[0]}?" if close else "look at its spelling"
            raise UsageError(f"find the factory: {module} has no {name!r}; {way_out}")
        found = getattr(found, word)
    if not callable(found):
        raise UsageError(f"find the factory: {name} is a {type(found).__name__}; name a function or a class")
    made: Callable[..., Any] = found
    return made


def _torchvision(_: str, name: str) -> Callable[[], Any]:
    return _own("torchvision.models", name)  # without weights unless asked


def _timm(module: str, name: str) -> Callable[[], Any]:
    return partial(_own(module, "create_model"), name, pretrained=False)


def _transformers(module: str, name: str) -> Callable[[], Any]:
    """A class of models, with what its configuration is by default."""
    found: Any = _own(module, name)
    config = getattr(found, "config_class", None)
    if config is None:
        raise UsageError(f"find the model: {name} is no class of models; name one such as BertModel")
    return lambda: found(config())


LIBRARIES: dict[str, Callable[[str, str], Callable[[], Any]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "diffusers": _own,  # a class of models, which has a default for each argument
}


def built(made: Any) -> nn.Module:
    """What a factory returned, if it can be trained. Raises UsageError."""
    if not isinstance(made, nn.Module):
        what = f"it returned a {type(made).__name__}; it must return a torch.nn.Module"
        raise UsageError(f"call the factory: {what}")
    if not trained(made):
        raise UsageError("look for what is trained: no parameter has requires_grad; give a model that has some")
    for name, one in trained(made).items():
        if dtype(one) not in EXCHANGED:
            raise UsageError(
                f"look for what is trained: {name} is {dtype(one)}; only {', '.join(EXCHANGED)} can be exchanged"
            )
    return made


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────
def default_input(model: str, net: nn.Module) -> Input:
    """One sample for the first layer that says what it takes. Raises UsageError when none does."""
    if model in DEFAULT_INPUTS:
        return DEFAULT_INPUTS[model]
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            return {"shape": [TOKENS], "kind": "int"}
        if isinstance(module, nn.Conv2d):
            return {"shape": [module.in_channels, IMAGE, IMAGE], "kind": "float"}
        if isinstance(module, nn.Linear):
            return {"shape": [module.in_features], "kind": "float"}
    raise UsageError("guess what it takes: no layer tells; say it with --input, such as 3x224x224 or 128:int")


def samples(wanted: Sequence[Input], net: nn.Module, batch: int, device: str) -> list[torch.Tensor]:
    """A batch of each input: noise, or whole numbers that every embedding has a row for."""
    words = min((one.num_embeddings for one in net.modules() if isinstance(one, nn.Embedding)), default=LEAST_WORDS)
    made = []
    for one in wanted:
        shape = (batch, *one["shape"])
        if one["kind"] == "int":
            made.append(torch.randint(0, words, shape, device=device))
        else:
            made.append(torch.randn(shape, device=device))
    return made
