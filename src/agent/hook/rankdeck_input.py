"""Counts the time that the training loop waits for its input: for the next batch of a data loader, or for a step of environments in workers.

Owner: the rank's interpreter, which loads this with the module that it wraps. Only the training loop's own waits count (HOOK-6), so nothing does
before there is a process group. A wait costs two readings of the clock and a comparison.
"""

import functools
import sys
import threading
from time import monotonic_ns

import rankdeck_page as pages

_LOADER, _ENVIRONMENTS = 1, 2

# Set by the hook of the process group: whether the present thread trains, and the frame of the program that called.
counts = caller = None
_local = threading.local()


def _counted(function, kind):
    @functools.wraps(function)
    def wait(*args, **kwargs):
        if counts is None or pages.page is None or getattr(_local, "inside", False):
            return function(*args, **kwargs)
        _local.inside = True
        begun = monotonic_ns()
        try:
            return function(*args, **kwargs)
        finally:
            _local.inside = False
            try:
                if pages.page is not None and counts():
                    pages.page.waited(monotonic_ns() - begun, kind, caller(sys._getframe(1)))
            except Exception:
                pass

    return wait


def watch(kind, owner, name):
    setattr(owner, name, _counted(getattr(owner, name), kind))


def watch_loader(module):
    watch(_LOADER, module._BaseDataLoaderIter, "__next__")


def watch_gymnasium(module):
    watch(_ENVIRONMENTS, module.AsyncVectorEnv, "step_wait" if hasattr(module.AsyncVectorEnv, "step_wait") else "step")


def watch_sb3(module):
    watch(_ENVIRONMENTS, module.SubprocVecEnv, "step_wait")
