"""What a script's DistributedDataParallel modules exchange: seen from a communication hook, or told by DDP's own log.

No `from __future__ import annotations` here: DDP looks at the hook's annotations and refuses strings.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from rig.workloads.steps import Buckets, Hook

WHOLE = ("allreduce_hook",)  # torch's hooks that send what the bucket has
HALF = ("fp16_compress_hook", "bf16_compress_hook")  # torch's hooks that send 2 bytes an element
USED = 4  # bytes for each parameter in the map of those that were used (reducer.cpp, all_reduce_local_used_map)


def averaged(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """What DDP does without a hook, to the last bit: multiply by 1/N (torch's allreduce_hook divides), then sum."""
    work = dist.all_reduce(bucket.buffer().mul_(1 / group.size()), group=group, async_op=True)
    assert work is not None  # None only for ranks outside the group
    first: Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return first


class Reduction:
    """What a hook of ours does to a bucket: what DDP does without one, until the script registers its own."""

    def __init__(self, group: object) -> None:
        self.state, self.replaced = group, False
        self.hook: Any = averaged

    @property
    def __name__(self) -> str:
        """That of the hook it does the work of."""
        return str(getattr(self.hook, "__name__", ""))

    def __call__(self, _: object, bucket: GradBucket) -> Future[torch.Tensor]:
        done: Future[torch.Tensor] = self.hook(self.state, bucket)
        return done

    def replace(self, state: object, hook: Any) -> None:
        """The script registers its hook later than its first forward pass."""
        self.state, self.hook, self.replaced = state, hook, True


class Replicas:
    """All DDP modules of this process; what they exchange adds up. See `watch.Exchange`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._buckets = Buckets()
        self._hooked: WeakKeyDictionary[DistributedDataParallel, Reduction | None] = WeakKeyDictionary()
        self._logged: WeakSet[DistributedDataParallel] = WeakSet()
        self._own: set[str] = set()  # names of the script's own hooks
        self._broadcasts: list[int] = []  # bytes of buffers in this step, until the layout is told
        self._settled = False

    @property
    def spans(self) -> list[list[Any]]:
        """[start, end, bytes] of each bucket of the step so far."""
        return self._buckets.spans

    def clear(self) -> None:
        """Forget the step before."""
        self._buckets.clear()
        self._broadcasts = []

    def meet(self, ddp: DistributedDataParallel) -> None:
        """A module's forward pass is called. The first time, it gets a hook that does what DDP does without any."""
        if not self._settled:
            self._broadcasts += _broadcasts(ddp)
        if ddp in self._hooked or ddp in self._logged:
            return
        if reason := _forbids(ddp):
            self.read_log(ddp, reason)
            return
        reduction = Reduction(ddp.process_group)
        REGISTER(ddp, None, self._seen(reduction))
        ddp._comm_hooks.pop()  # only a compiled reducer reads them, and this one could not be pickled
        self._hooked[ddp] = reduction

    def register(self, ddp: DistributedDataParallel, state: object, hook: Any) -> None:
        """The script registers a hook of its own, before or after ours. Raises what DDP raises for it."""
        ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]
        reduction = self._hooked.get(ddp)
        if reduction is not None and not reduction.replaced:
            reduction.replace(state, hook)
        else:
            REGISTER(ddp, state, self._seen(hook))
            ddp._comm_hooks[-1] = (hook, state)
            self._hooked[ddp] = None
        self._own.add(getattr(hook, "__qualname__", type(hook).__name__))

    def _seen(self, hook: Any) -> Hook:
        """The hook, noted; its buckets' bytes are those it sends, where that is known."""
        noted = self._buckets.hook(hook)

        def sized(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
            done = noted(state, bucket)
            if getattr(hook, "__name__", "") in HALF:
                self._buckets.spans[-1][2] = 2 * bucket.buffer().numel()
            return done

        return sized

    def read_log(self, ddp: DistributedDataParallel, reason: str) -> None:
        """Of this module only DDP's own log tells: when its first bucket set out, and when the last one was there."""
        ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
        self._logged.add(ddp)
        self._own.add(reason)
        self._tell(f"onlooker: {reason}: from DDP's own log, all of its buckets as one")

    def part(self, before: int) -> None:
        """A backward pass has ended, `before` which there were so many spans: forget what it exchanged, if it had not
        done so with others there.
        """
        if len(self._buckets.spans) > before and _apart():
            del self._buckets.spans[before:]
            del self._buckets.members[before:]

    def complete(self) -> None:
        """Add to a step what has to be read once it is over."""
        for ddp in self._logged:
            self._buckets.spans += _logged_spans(ddp)

    def layout(self) -> dict[str, Any]:
        """Bytes of each bucket and the parameters in it, as indices in registration order (module after module), in the
        order of the hook's calls; bytes that DDP broadcasts before a forward pass, one a dtype; bytes of each map of
        parameters that were used; names of the script's own hooks, with which what is sent is not the buckets' bytes.
        """
        modules = [*self._hooked, *self._logged]
        parameters = [parameter for ddp in modules for parameter in ddp.module.parameters()]
        index = {id(parameter): place for place, parameter in enumerate(parameters)}
        tensors = [[index.get(id(one), -1) for one in members] for members in self._buckets.members]
        self._settled, self._buckets.notes_members = True, False
        return {
            "buckets": [int(span[2]) for span in self._buckets.spans],
            "tensors": tensors,
            "broadcasts": self._broadcasts,
            "maps": [USED * count for ddp in modules if (count := _mapped(ddp))],
            "hooks": sorted(self._own - {*WHOLE, *HALF}),
        }


REGISTER = DistributedDataParallel.register_comm_hook  # torch's own


def _forbids(ddp: DistributedDataParallel) -> str:
    """Why a hook would change what this module does, or nothing."""
    if ddp._use_python_reducer:
        return "a compiled reducer"
    if not getattr(ddp, "_divide_by_initial_world_size", True):
        return "Join with divide_by_initial_world_size=False"
    kinds = (nn.Embedding, nn.EmbeddingBag)
    if any(isinstance(module, kinds) and module.sparse for module in ddp.module.modules()):
        return "sparse gradients"
    return ""


def _apart() -> bool:
    """Whether this is one of Accelerate's earlier micro-batches, in a process alone: no_sync is for several only there
    (accelerate/accelerator.py, no_sync), so that a process alone exchanges in each.
    """
    state = sys.modules.get("accelerate.state")
    if state is None or dist.get_world_size() > 1:
        return False
    shared = state.GradientState._shared_state
    return not shared.get("sync_gradients", True) and not shared["plugin_kwargs"].get("sync_each_batch", False)


def _broadcasts(ddp: DistributedDataParallel) -> Iterator[int]:
    """Bytes of the module's buffers, those of one dtype at a time (torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size, sorts them so); none where the forward pass to come does not broadcast them.
    """
    sizes: dict[torch.dtype, int] = {}
    if ddp._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]
        for buffer in ddp.modules_buffers:
            sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.nbytes
    yield from sizes.values()


def _mapped(ddp: DistributedDataParallel) -> int:
    """How many parameter tensors the module tells the others of, whether they were used."""
    if not ddp.find_unused_parameters or ddp.static_graph:
        return 0
    return sum(parameter.requires_grad for parameter in ddp.module.parameters())


def _logged_spans(ddp: DistributedDataParallel) -> list[list[Any]]:
    """[start, end, bytes] of each bucket by DDP's log: its moments are the wall clock's, of all of them together."""
    assert ddp.logger is not None
    ddp.logger.set_runtime_stats_and_log()
    data = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    began, ended = data.get("backward_comm_time_start"), data.get("backward_comm_time_end")
    if not began or not ended:  # of the first step it keeps none
        return []
    shift = time.monotonic() - time.time()
    return [[began / 1e9 + shift, ended / 1e9 + shift, int(size)] for size in sizes.split(",")]
