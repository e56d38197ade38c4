"""Shows an agent what PyTorch's process groups of this rank do; put on PYTHONPATH by rankdeck's agent.

Owner: the rank's interpreter. It changes no result and starts nothing before `init_process_group` but the page of a rank that steps an
optimizer without a process group. What it writes is the rank's status page (version 3, see src/proto/status_page.rs), a mapped file that stays
readable when this process is stopped or dead.

Rules:
- HOOK-1: an error in here never reaches the script: the hook falls silent.
- HOOK-2: the script's own `sitecustomize` runs as if this one were not there.
- HOOK-3: only the rank itself writes: children, forked or spawned, never do, and inherit neither socket nor running thread.
- HOOK-4: collectives that C++ issues (gradient all-reduce of DDP) are counted too, through the group's own sequence number.
- HOOK-5: the exception that ends the rank is reported, whoever else watches for it, and whatever exit code follows. One that the rank may
  survive is reported as that: of a program that the rank's own has started, or one that was caught and shown. Where a shell starts
  another program after it, it is taken back. No frame of the hook is its place.
- HOOK-6: only the training loop is counted. Its thread is the one that called `init_process_group`, or another one that is the first to use
  the group of all ranks or to step an optimizer; when it has ended, the next that calls. Threads that only C++ knows belong to it. Collectives
  and steps of other threads leave no trace on the page.
- HOOK-7: that the main program has returned is reported before its exit handlers run, unless `sys.exit` got another code than 0, or a thread
  still works. What ends the process after that is the exit of the interpreter. Where a shell starts another program after it, it is taken back.
- HOOK-8: where there are several ranks, steps of optimizers are counted from the first one on, with or without a process group: ranks that
  step and never form one are separate programs.
- HOOK-9: a process below the rank's own that joins a process group of another size than the plan's, or that starts next to one that writes the page, is a
  rank of its own. It is reported, once, and writes a page of its own, next to that of the rank that has started it: its counters are not
  comparable with those of the plan's ranks, but with those of its own group.
- HOOK-10: in a drill (RANKDECK_DRILL), and only there, a thread waits for the agent's request to raise an exception in the main thread.
"""

import os
import sys

# Variables of PyTorch's Flight Recorder, and their names before PyTorch 2.8.
_RENAMED = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
_OWN = os.path.dirname(os.path.abspath(__file__))


def _load(name):
    """A module that lies next to this one, whatever the script has made of `sys.path`."""
    if name in sys.modules:
        return sys.modules[name]
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, os.path.join(_OWN, name + ".py"))
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _watch_groups(module):
    _load("rankdeck_page")
    _load("rankdeck_hook").Hook(module, _load).install()
    _watch_threads()


def _is_several():
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def _watch_steps(module):
    """HOOK-8"""
    if _is_several():
        _load("rankdeck_page").watch_steps(module.register_optimizer_step_post_hook)


def _watcher(file, name):
    def watch(module):
        if _is_several():
            _load("rankdeck_page")
            getattr(_load(file), name)(module)

    return watch


# Modules of PyTorch and of libraries, and what is done as soon as one has been imported.
_TARGETS = {
    "torch.distributed.distributed_c10d": _watch_groups,
    "torch.optim.optimizer": _watch_steps,
    "torch.nn.modules.module": _watcher("rankdeck_normal", "watch_modules"),
    "torch.nn.parallel.distributed": _watcher("rankdeck_normal", "watch_broadcast"),
    "gymnasium.wrappers.utils": _watcher("rankdeck_normal", "watch_objects"),
    "stable_baselines3.common.running_mean_std": _watcher("rankdeck_normal", "watch_objects"),
    "torch.utils.data.dataloader": _watcher("rankdeck_input", "watch_loader"),
    "gymnasium.vector.async_vector_env": _watcher("rankdeck_input", "watch_gymnasium"),
    "stable_baselines3.common.vec_env.subproc_vec_env": _watcher("rankdeck_input", "watch_sb3"),
}


class _Loader:
    def __init__(self, inner, then):
        self._inner, self._then = inner, then

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        _name_recorder()
        self._inner.exec_module(module)
        try:
            self._then(module)
        except Exception:
            pass


def _name_recorder():
    """Sets the Flight Recorder's variables under the names that this PyTorch reads: newer ones warn of the old names."""
    try:
        version = str(sys.modules["torch"].__version__).split(".")
        if (int(version[0]), int(version[1])) < (2, 8):
            for name, before in _RENAMED:
                if name in os.environ:
                    os.environ.setdefault(before, os.environ[name])
    except Exception:
        pass


class _Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        then = _TARGETS.pop(name, None)
        if then is None:
            return None
        if not _TARGETS:
            try:
                sys.meta_path.remove(cls)
            except ValueError:
                pass
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, then)
        return spec


# Exceptions by identity, and whether they were reported as the end.
_reported = {}


def _report(value, thread=""):
    """Only for the rank itself: the first interpreter, or the one that has joined the process group."""
    try:
        pages = sys.modules.get("rankdeck_page")
        is_rank = getattr(pages, "page", None) is not None or getattr(pages, "inner", None) == os.getpid()
        first = os.environ.get("RANKDECK_FIRST_PYTHON") == str(os.getpid())
        if value is None or _reported.get(id(value)) or not (first or is_rank):
            return
        ending = _load("rankdeck_ending")
        ends = bool(thread) or first and ending.ends(value.__traceback__)
        if ends or id(value) not in _reported:
            _reported[id(value)] = ends
            ending.report(value, thread, ends)
    except Exception:
        pass


def _report_last():
    _report(getattr(sys, "last_value", None))


# What `sys.exit` got last.
_exit_code = None


def _report_end():
    """The main program is over, and no exit handler of it has run."""
    _report_last()
    try:
        import threading

        main = threading.main_thread()
        works = any(thread is not main and not thread.daemon for thread in threading.enumerate())
        first = os.environ.get("RANKDECK_FIRST_PYTHON") == str(os.getpid())
        if first and not works and _exit_code in (None, 0, False) and not any(_reported.values()):
            _load("rankdeck_ending").returned()
    except Exception:
        pass


def _watch_exit():
    from functools import wraps

    before = sys.exit

    @wraps(before)
    def exit(*code):
        global _exit_code
        _exit_code = code[0] if code else None
        before(*code)

    sys.exit = exit


def _watch_end():
    import atexit

    first = os.environ.setdefault("RANKDECK_FIRST_PYTHON", str(os.getpid())) == str(os.getpid())
    if first and os.path.exists(os.environ["RANKDECK_STATUS_PAGE"] + ".raised"):
        # A shell runs this program after another one.
        try:
            _load("rankdeck_ending").take_back()
        except Exception:
            pass
    before = sys.excepthook

    def excepthook(kind, value, trace):
        _report(value)
        before(kind, value, trace)

    sys.excepthook = excepthook
    _watch_exit()
    # A program that has a hook of its own may not call this one; the interpreter keeps what ended it.
    atexit.register(_report_last)


def _watch_drill():
    """HOOK-10"""
    import threading
    import time

    request = os.environ["RANKDECK_STATUS_PAGE"] + ".raise"
    main = threading.main_thread().ident

    class DrillError(RuntimeError):
        def __str__(self):
            return "raised by `rankdeck drill`"

    def wait():
        while not os.path.exists(request):
            time.sleep(0.1)
        try:
            import ctypes

            # First: the exception may end the process at once.
            os.remove(request)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(DrillError))
        except Exception:
            pass

    if os.environ.get("RANKDECK_FIRST_PYTHON") == str(os.getpid()):
        threading.Thread(target=wait, name="rankdeck-drill", daemon=True).start()


def _watch_threads():
    import threading

    before = threading.excepthook

    def excepthook(args):
        _report(args.exc_value, getattr(args.thread, "name", "") or "?")
        before(args)

    threading.excepthook = excepthook
    # Before every exit handler of the program: one may end the process on the spot.
    threading._register_atexit(_report_end)


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


if os.environ.get("RANKDECK_RANK") and os.environ.get("RANKDECK_STATUS_PAGE") and sys.version_info >= (3, 8):
    sys.meta_path.insert(0, _Finder)
    if os.environ.get("RANKDECK_EVENTS"):
        _watch_end()
        if os.environ.get("RANKDECK_DRILL") == "1":
            _watch_drill()
_chain()
