"""Finds the normalizers of a program: modules and objects that keep a running mean and variance. Ranks that train one policy should agree about them.

Owner: the rank's interpreter, which loads this with the module that it watches; `rankdeck_weights` takes their fingerprints. Nothing is kept alive.

Batch normalization is not included: its statistics are local by design, or DistributedDataParallel broadcasts rank 0's at each forward pass and
every rank adds its own batch to them. The same holds for other buffers of such a module.
"""

import weakref

_MOST = 16
_MEANS, _SPREADS = ("mean",), ("var", "std")

# In the order in which they were made.
_modules = []
_objects = []
# Modules whose buffers DistributedDataParallel broadcasts.
_broadcast = weakref.WeakSet()


def _remember(known, found):
    known[:] = [other for other in known if other() is not None]
    if len(known) < _MOST and not any(other() is found for other in known):
        known.append(weakref.ref(found))


def watch_modules(module):
    """`module` is the one that defines `torch.nn.Module`."""

    def registered(owner, name, buffer):
        try:
            kind = type(owner)
            if any(part in name for part in _MEANS) and kind.__module__.split(".")[0] != "torch" and "batch" not in kind.__name__.lower():
                _remember(_modules, owner)
        except Exception:
            pass

    module.register_module_buffer_registration_hook(registered)


def watch_broadcast(module):
    """`module` is the one that defines DistributedDataParallel."""
    import functools

    begin = module.DistributedDataParallel.__init__

    @functools.wraps(begin)
    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        try:
            if self.broadcast_buffers:
                for inner in self.module.modules():
                    _broadcast.add(inner)
        except Exception:
            pass

    module.DistributedDataParallel.__init__ = init


def watch_objects(module):
    """`module` defines a `RunningMeanStd` with arrays of NumPy, as Gymnasium and Stable-Baselines3 do."""
    import functools

    begin = module.RunningMeanStd.__init__

    @functools.wraps(begin)
    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        try:
            _remember(_objects, self)
        except Exception:
            pass

    module.RunningMeanStd.__init__ = init


def _is_norm(owner):
    import torch

    return isinstance(owner, torch.nn.modules.batchnorm._NormBase)


def statistics():
    """Of each normalizer its name and its tensors: means and variances of more than nothing, floating point only."""
    import torch

    found = []
    for known in _modules:
        owner = known()
        if owner is None or owner in _broadcast or _is_norm(owner):
            continue
        named = [(name, one) for name, one in owner._buffers.items() if one is not None and one.is_floating_point() and one.numel()]
        if any(part in name for name, _ in named for part in _MEANS) and any(part in name for name, _ in named for part in _SPREADS):
            found.append((type(owner).__name__, [one.detach() for _, one in sorted(named, key=lambda pair: pair[0])]))
    for known in _objects:
        owner = known()
        if owner is not None and getattr(owner, "mean", None) is not None and getattr(owner, "var", None) is not None:
            found.append((type(owner).__name__, [torch.as_tensor(owner.mean).detach(), torch.as_tensor(owner.var).detach()]))
    return found
