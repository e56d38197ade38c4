"""Shows an agent what PyTorch's process groups of this rank do; put on PYTHONPATH by rankdeck's agent.

Owner: the rank's interpreter. It changes no result and starts nothing before `init_process_group`. What it writes is the rank's status page
(version 3, see src/proto/status_page.rs), a mapped file that stays readable when this process is stopped or dead.

Rules:
- HOOK-1: an error in here never reaches the script: the hook falls silent.
- HOOK-2: the script's own `sitecustomize` runs as if this one were not there.
- HOOK-3: only the rank itself writes: children, forked or spawned, never do, and inherit neither socket nor running thread.
- HOOK-4: collectives that C++ issues (gradient all-reduce of DDP) are counted too, through the group's own sequence number.
- HOOK-5: the exception that ends the rank is reported, whoever else watches for it.
"""

import os
import sys

_TARGET = "torch.distributed.distributed_c10d"
_OWN = os.path.dirname(os.path.abspath(__file__))


def _load(name):
    """A module that lies beside this one, whatever the script has made of `sys.path`."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, os.path.join(_OWN, name + ".py"))
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Loader:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        self._inner.exec_module(module)
        try:
            _load("rankdeck_page")
            _load("rankdeck_hook").Hook(module, _load).install()
            _watch_threads()
        except Exception:
            pass


class _Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _TARGET:
            return None
        try:
            sys.meta_path.remove(cls)
        except ValueError:
            pass
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


_reported = set()


def _report(value, thread=""):
    """Only for the rank itself: the first interpreter, or the one that has joined the process group."""
    try:
        page = getattr(sys.modules.get("rankdeck_page"), "page", None)
        if value is None or id(value) in _reported or (page is None and os.environ.get("RANKDECK_FIRST_PYTHON") != str(os.getpid())):
            return
        _reported.add(id(value))
        _load("rankdeck_ending").report(value, thread)
    except Exception:
        pass


def _watch_end():
    import atexit

    os.environ.setdefault("RANKDECK_FIRST_PYTHON", str(os.getpid()))
    before = sys.excepthook

    def excepthook(kind, value, trace):
        _report(value)
        before(kind, value, trace)

    sys.excepthook = excepthook
    # A program that has a hook of its own may not call this one; the interpreter keeps what ended it.
    atexit.register(lambda: _report(getattr(sys, "last_value", None)))


def _watch_threads():
    import threading

    before = threading.excepthook

    def excepthook(args):
        _report(args.exc_value, getattr(args.thread, "name", "") or "?")
        before(args)

    threading.excepthook = excepthook


def _chain():
    """Runs the `sitecustomize` that would have run without this one."""
    import importlib.util
    from importlib.machinery import PathFinder

    rest = [path for path in sys.path if os.path.abspath(path or os.curdir) != _OWN]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("RANK") and os.environ.get("RANKDECK_STATUS_PAGE") and sys.version_info >= (3, 8):
    sys.meta_path.insert(0, _Finder)
    if os.environ.get("RANKDECK_EVENTS"):
        _watch_end()
_chain()
