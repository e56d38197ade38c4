"""Fingerprints of the weights that an optimiser updates, for the status page: ranks that train one model must agree about them.

Owner: the rank's interpreter, which loads this with `torch.distributed`. Of each parameter a few elements are read, the same ones on every rank.
No collective is made, and nothing waits for a GPU: a copy that is under way is read after a later step.

They are taken when a step begins, of what the steps before have made: programs that average weights now and then, and not gradients, are equal
only behind that. Each is sent with whether about as much was exchanged since the step before as there are weights: a loss that is averaged for a
log synchronizes nothing. Where that is not so at every step, the first behind some are taken, whatever the pace.

Ranks may make different numbers of steps between two exchanges: as many as fit into some time, until their own measure ends an epoch, or for each
batch of their own below `Join`. So a number of steps is no common place. All ranks make the same collectives of the group of all ranks, in the
same order: a place is how many of these were made before, and how many steps since the latest. At the same place, ranks have made the same
exchanges and as many steps behind them.

With those of the first optimiser, fingerprints of the running statistics of normalizers are taken, as those of a number of their own: they
lie on the weights' device, or on the CPU, and are part of the same cost.

Cost: of so many places fingerprints are taken at one (`is_chosen`), a power of two, which doubles until they take less than `_SHARE` of the CPU
time of the thread that steps: on a busy host, wall time measures neither. A step without one costs reading the counters: reading the clock of a
thread is a system call. However dear they are, of `_MOST` steps about one has them, so that a difference is seen within those.
Where steps take long but little CPU time, as those that mostly wait do, there are about two a second.
"""

import ctypes
import math
import zlib
from time import monotonic, thread_time

import torch

_SHARE = 0.005
_MOST = 1024
# Seconds between two, unless they are dear: a difference is reported about as fast as other faults.
_SECONDS = 0.5
# The first steps are always sampled: replicas must begin alike, and the detector learns from these what the program keeps equal.
_ALWAYS = 9
# Steps among which one without an exchange before it shows a program that averages now and then.
_FIRST = 64
# Behind collectives, in programs that make steps without them.
_BEHIND = 64
_ELEMENTS = 2048
_LANES = 8
# The number of normalizers among the optimisers: that of `NORMALIZERS` in src/proto/message/sample.rs.
_NORMALIZERS = 8
_MASK = (1 << 64) - 1
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_chosen(calls, since, every):
    """Whether a fingerprint is taken at this place: on average at one of `every`, a power of two. They are the same on all ranks, those of a larger
    power are among those of a smaller one, and no rhythm of a program avoids them."""
    mixed = (calls * 0x9E3779B97F4A7C15 + since) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 31) * 0x94D049BB133111EB & _MASK
    return not mixed >> 40 & every - 1


class Weights:
    """One optimiser."""

    def __init__(self, optimizer, index, page, normalizers=None):
        self.optimizer, self.index, self.page = optimizer, index, page
        self.normalizers = normalizers if index == 0 else None
        self.steps = 0
        self.every = 1
        self.cost = self.between = None
        self.sampled, self.last = 0, thread_time()
        self.step_wall, self.last_wall = 0.0, monotonic()
        self.views = None
        self.pending = None
        self.due, self.alone, self.local, self.behind, self.exchanged = True, False, False, 0, page.elements
        # The place: collectives of all ranks so far, and steps since the latest.
        self.calls, self.since = None, 0
        plain = (parameter for parameter in self.parameters() if type(parameter) in (torch.Tensor, torch.nn.Parameter))
        self.least = max(1, sum(parameter.numel() for parameter in plain) // 2)

    def before(self):
        """A step begins; the first one with what all ranks begin with."""
        elements, calls = self.page.exchanged()
        if calls != self.calls:
            self.calls, self.since = calls, 0
        called = elements - self.exchanged >= self.least
        self.local = self.local or not called and 0 < self.steps < _FIRST
        self.due = self.steps < _ALWAYS or is_chosen(calls, self.since, self.every)
        if self.due or called and self.alone and self.behind < _BEHIND:
            self.behind += not self.due
            self.take(called)
        self.alone = not called

    def after(self):
        self.steps += 1
        self.since += 1
        self.exchanged = self.page.elements
        if self.pending is not None:
            self.finish()
        if not self.due:
            return
        now, wall = thread_time(), monotonic()
        steps = self.steps - self.sampled
        between = (now - self.last) / steps
        self.step_wall = (wall - self.last_wall) / steps
        self.sampled, self.last, self.last_wall = self.steps, now, wall
        # One long pause, such as an evaluation, must not make the next steps dear.
        self.between = between if self.between is None else min(self.between * 1.5, 0.9 * self.between + 0.1 * between)
        if self.steps > _ALWAYS // 2:
            self.pace()

    def pace(self):
        allowed = _SHARE * self.between
        while self.every < _MOST and self.cost > self.every * allowed:
            self.every *= 2
        if self.every > 1 and self.cost < self.every * allowed / 4:
            self.every //= 2
        while self.every * self.step_wall > _SECONDS and self.every > 1 and self.cost <= _SHARE * self.every / 2 * self.step_wall:
            self.every //= 2

    def take(self, synced):
        if self.pending is not None or torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        begun = thread_time()
        with torch.no_grad():
            if self.views is None or self.moved():
                self.scan()
            if not self.views:
                return
            at = (self.steps, (self.calls, self.since), synced, self.local)
            statistics = Statistics(self.normalizers, self.views[0].device)
            views = self.views + statistics.beside
            sample = torch.cat([view if view.dtype is torch.float32 else view.float() for view in views])
            if sample.is_cuda:
                if self.buffer is None or self.buffer.numel() != sample.numel():
                    self.buffer = torch.empty(sample.numel(), dtype=torch.float32, pin_memory=True)
                self.buffer.copy_(sample, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
                self.pending = (at, event, statistics)
            else:
                self.report(at, sample, statistics)
        cost = thread_time() - begun
        self.cost = cost if self.cost is None or self.steps <= 2 else 0.8 * self.cost + 0.2 * cost

    def finish(self):
        at, event, statistics = self.pending
        if event.query():
            begun = thread_time()
            self.pending = None
            self.report(at, self.buffer, statistics)
            self.cost += thread_time() - begun

    def parameters(self):
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def moved(self):
        """The tensors are not those whose elements the views show."""
        parameters = self.parameters()
        return len(parameters) != len(self.pointers) or any(p.data_ptr() != at for p, at in zip(parameters, self.pointers))

    def scan(self):
        """Chooses the elements: up to a fixed number of each parameter, at a fixed stride. Its lane is the place of a parameter among all."""
        parameters = self.parameters()
        self.pointers = [parameter.data_ptr() for parameter in parameters]
        self.views, self.lanes, self.buffer = [], [], None
        share = max(8, _ELEMENTS // max(1, len(parameters)))
        shapes = []
        device = None
        for at, parameter in enumerate(parameters):
            plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and parameter.layout is torch.strided and parameter.dtype in _FLOATS
            if not plain or parameter.numel() == 0 or parameter.is_meta or (device is not None and parameter.device != device):
                continue
            device = parameter.device
            data = parameter.detach()
            # In the order of memory, which is that of every rank.
            dense = data.permute(sorted(range(data.dim()), key=lambda dim: -data.stride(dim)))
            if not dense.is_contiguous():
                continue
            flat = dense.view(-1)
            view = flat[:: max(1, data.numel() // share)][:share]
            self.views.append(view)
            self.lanes.append((at if len(parameters) <= _LANES else at * _LANES // len(parameters), view.numel()))
            shapes.append((tuple(parameter.shape), str(parameter.dtype)))
        self.shapes = zlib.crc32(repr(shapes).encode())

    def report(self, at, sample, statistics):
        count = sum(size for _, size in self.lanes)
        self.write(at, self.index, self.shapes, self.lanes, sample[:count])
        if statistics.lanes:
            beside = torch.cat([sample[count:], statistics.on_cpu])
            self.write(at, _NORMALIZERS, statistics.shapes, statistics.lanes, beside)

    def write(self, at, number, shapes, parts, sample):
        step, place, synced, local = at
        data = ctypes.string_at(sample.data_ptr(), 4 * sample.numel())
        lanes, begin = [0] * _LANES, 0
        for lane, size in parts:
            lanes[lane] = zlib.crc32(data[4 * begin : 4 * (begin + size)], lanes[lane])
            begin += size
        total, scale = sample.sum(dtype=torch.float64).item(), sample.abs().sum(dtype=torch.float64).item()
        finite = math.isfinite(scale)
        total, scale = (total, scale) if finite else (0.0, 0.0)
        self.page.fingerprint(step, place, number, shapes, lanes, total, scale, finite, synced, local)


class Statistics:
    """Of the normalizers at one step: those `beside` the weights, on their device, and then the values of those on the CPU."""

    def __init__(self, normalizers, device):
        self.beside, self.lanes, self.shapes, self.on_cpu = [], [], 0, torch.empty(0)
        try:
            if normalizers is not None:
                self.read(normalizers, device)
        except Exception:
            # The weights are compared all the same.
            self.beside, self.lanes, self.on_cpu = [], [], torch.empty(0)

    def read(self, normalizers, device):
        shapes, cpu, lanes = [], [], []
        for at, (name, tensors) in enumerate(normalizers.statistics()):
            for tensor in tensors:
                view = tensor.reshape(-1)[:_ELEMENTS]
                shapes.append((name, tuple(tensor.shape)))
                if tensor.device == device:
                    self.beside.append(view)
                    self.lanes.append((at % _LANES, view.numel()))
                elif tensor.device.type == "cpu":
                    cpu.append(view.float())
                    lanes.append((at % _LANES, view.numel()))
        if cpu:
            self.on_cpu = torch.cat(cpu)
        self.lanes += lanes
        self.shapes = zlib.crc32(repr(shapes).encode())


def watch(page_of, normalizers=None):
    """Samples every optimiser from now on; `page_of` gives the open page, or `None`. `normalizers`: the module that finds them."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    known = {}

    def weights(optimizer):
        page = page_of()
        if page is None:
            return None
        found = known.get(id(optimizer))
        if found is None or found.optimizer is not optimizer:
            if len(known) >= 8:
                return None
            found = known[id(optimizer)] = Weights(optimizer, len(known), page, normalizers)
        return found

    def guarded(then):
        def hook(optimizer, *_):
            try:
                found = weights(optimizer)
                if found is not None:
                    then(found)
            except Exception:
                # Whatever it is about this optimiser, it will not be better at the next step.
                known[id(optimizer)] = _Silent(optimizer)

        return hook

    register_optimizer_step_pre_hook(guarded(lambda found: found.before()))
    register_optimizer_step_post_hook(guarded(lambda found: found.after()))


class _Silent:
    """An optimiser that cannot be sampled."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def before(self):
        pass

    def after(self):
        pass
