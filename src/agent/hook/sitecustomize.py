"""Shows an agent what PyTorch's process groups of this rank do; put on PYTHONPATH by rankdeck's agent.

Owner: the rank's interpreter. It changes no result and starts nothing before `init_process_group`. What it writes is the rank's status page
(version 2, see src/proto/status_page.rs), a mapped file that stays readable when this process is stopped or dead.

Rules:
- HOOK-1: an error in here never reaches the script: the hook falls silent.
- HOOK-2: the script's own `sitecustomize` runs as if this one were not there.
- HOOK-3: only the rank itself writes: children, forked or spawned, never do, and inherit neither socket nor running thread.
- HOOK-4: collectives that C++ issues (gradient all-reduce of DDP) are counted too, through the group's own sequence number.
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
            _load("rankdeck_hook").Hook(module).install()
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
_chain()
