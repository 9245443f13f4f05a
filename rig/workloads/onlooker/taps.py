"""Where torch tells what a script does: wrappers round a few of its functions, each of which then does as before."""

from __future__ import annotations

from functools import wraps
from typing import Any
from weakref import WeakSet, ref

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from rig.workloads.onlooker.replicas import Replicas
from rig.workloads.onlooker.watch import Watch, watching


def install() -> None:
    """Tap torch in this process; nothing outside the rig. Raises AttributeError where this torch lacks any of it."""
    watch = watching()
    if watch is None:
        return
    replicas = Replicas(watch.tell)
    watch.exchange = replicas
    _tap_groups(watch)
    _tap_backward(watch, replicas)
    _tap_ddp(watch, replicas)
    _tap_optimizers(watch)


def _tap_groups(watch: Watch) -> None:
    join = distributed_c10d.init_process_group

    @wraps(join)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        join(*args, **kwargs)
        watch.guarded(_joined, watch)

    dist.init_process_group = distributed_c10d.init_process_group = init_process_group


def _joined(watch: Watch) -> None:
    store: Any = distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    watch.join(dist.get_backend(), dist.get_rank(), dist.get_world_size(), getattr(store, "port", None))


def _tap_backward(watch: Watch, replicas: Replicas) -> None:
    """Passes inside others (torch.utils.checkpoint's) are parts of them, in whichever thread."""
    back = torch.autograd.backward
    depth = 0  # 1 within a pass

    @wraps(back)
    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth:
            return back(*args, **kwargs)
        watch.guarded(watch.begin)
        watch.guarded(watch.moments.back)
        before, depth = len(replicas.spans), 1
        try:
            back(*args, **kwargs)
        finally:
            depth = 0
        watch.guarded(watch.moments.backed)
        watch.guarded(replicas.part, before)

    torch.autograd.backward = backward


def _tap_ddp(watch: Watch, replicas: Replicas) -> None:
    """Validation, which has no backward pass, is no part of a step's forward."""
    of: Any = DistributedDataParallel  # whose methods have no types
    register, builtin, call, compute = (
        of.register_comm_hook, of._register_builtin_comm_hook, of.forward, of._run_ddp_forward,
    )  # fmt: skip

    @wraps(register)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        replicas.register(self, state, hook)

    @wraps(builtin)
    def _register_builtin_comm_hook(self: DistributedDataParallel, kind: Any) -> None:
        builtin(self, kind)
        watch.guarded(replicas.read_log, self, f"a built-in hook, {kind}")

    @wraps(call)
    def forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        watch.guarded(_called, watch, replicas, self)
        return call(self, *args, **kwargs)

    @wraps(compute)
    def _run_ddp_forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            watch.guarded(watch.moments.compute)
        return compute(self, *args, **kwargs)

    for function in (register_comm_hook, _register_builtin_comm_hook, forward, _run_ddp_forward):
        setattr(of, function.__name__, function)


def _called(watch: Watch, replicas: Replicas, ddp: DistributedDataParallel) -> None:
    watch.begin()
    if torch.is_grad_enabled():
        watch.moments.call()
    replicas.meet(ddp)


def _tap_optimizers(watch: Watch) -> None:
    """A step ends with the optimizer that ended the first one, or with another that has come twice without it."""
    turns = Turns(watch)
    register_optimizer_step_post_hook(lambda optimizer, *_: turns.take(optimizer))
    scaler = torch.amp.GradScaler
    scaled = scaler.step

    @wraps(scaled)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = turns.taken
        done = scaled(self, optimizer, *args, **kwargs)
        if turns.taken == before:  # it left the optimizer's step out, for a gradient was infinite
            turns.take(optimizer)
        return done

    scaler.step = step  # type: ignore[method-assign]


class Turns:
    """Whose turn it is to end a step."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._first: ref[Any] | None = None  # the optimizer that ends steps
        self._others: WeakSet[Any] = WeakSet()  # that have come since
        self.taken = 0

    def take(self, optimizer: object) -> None:
        """An optimizer has done its step."""
        self.taken += 1
        if self._watch.over and self._watch.exchange:
            self._watch.exchange.clear()  # nobody reads it any more
        if self._watch.by_hand or self._watch.over:
            return
        first = self._first and self._first()
        if first not in (None, optimizer) and optimizer not in self._others:
            self._others.add(optimizer)
            return
        self._first, self._others = ref(optimizer), WeakSet()
        self._watch.guarded(self._watch.end)
