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

_PAGE_BYTES = 16384
_TARGET = "torch.distributed.distributed_c10d"
_MASK = (1 << 64) - 1
_PRIME = 0x100000001B3
_RING, _RING_WORDS, _RING_START = 64, 15, 64
_GROUPS, _GROUP_WORDS, _GROUPS_START = 16, 8, 1024
_ITERATIONS, _ITERATION_WORDS, _ITERATIONS_START = 128, 5, 1152
_SITES, _SITE_TEXT, _SITES_START = 32, 56, 1792
_BODY, _LOCK = 9, 8
_RENDEZVOUS, _LEARN, _TEARDOWN = 1, 3, 7
# In the head: who writes, and the counters of requests for a Flight Recorder dump and of answers.
_WRITER, _REQUEST, _ANSWER = 5, 6, 7

# Function: (number of the operation on the page, name of the parameter that says how much, name of the parameter that is its root).
_OPS = {
    "all_reduce": (1, "tensor", None),
    "broadcast": (2, "tensor", "src"),
    "all_gather": (3, "tensor", None),
    "all_gather_into_tensor": (3, "input_tensor", None),
    "barrier": (4, None, None),
    "monitored_barrier": (4, None, None),
    "reduce_scatter": (5, "output", None),
    "reduce_scatter_tensor": (5, "output", None),
    # Members may send different amounts.
    "all_to_all": (6, None, None),
    "all_to_all_single": (6, None, None),
    "reduce": (7, "tensor", "dst"),
    "gather": (8, "tensor", "dst"),
    "scatter": (9, "tensor", "src"),
}
_DTYPES = {"uint8": (0, 1), "int64": (1, 8), "float32": (2, 4), "float64": (3, 8), "float16": (4, 2), "bfloat16": (5, 2), "int32": (6, 4), "bool": (7, 1)}

# Point-to-point calls: some libraries give them numbers, and they are no collectives.
_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")

_page = None


def _words(text, size):
    data = text.encode("ascii", "replace")[:size].ljust(size, b"\0")
    return [int.from_bytes(data[at:at + 8], "little") for at in range(0, size, 8)]


class _Page:
    def __init__(self, path, rank, generation):
        import mmap
        import struct
        import threading
        import time

        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _PAGE_BYTES)
            self.map = mmap.mmap(fd, _PAGE_BYTES)
        finally:
            os.close(fd)
        self.path = path
        self.words = memoryview(self.map).cast("Q")
        self.now = time.monotonic_ns
        self.ring_entry = struct.Struct("=15Q")
        self.group_entry = struct.Struct("=8Q")
        self.lock = threading.Lock()
        self.entered = self.left = self.wait = self.updates = 0
        self.groups = {}
        self.sites = {}
        self.open = None
        self.fr = None
        words = self.words
        words[0] = 0
        for at in range(1, _PAGE_BYTES // 8):
            words[at] = 0
        now = self.now()
        words[_BODY], words[_BODY + 1], words[_BODY + 3], words[_BODY + 13] = _RENDEZVOUS, now, now, now
        words[_GROUPS_START:_GROUPS_START + 2] = memoryview(self.group_entry.pack(*_words("world", 16), *[0] * 6)).cast("Q")[:2]
        words[1], words[2], words[3], words[4], words[_WRITER] = 2, rank, generation, os.getpid(), 1
        words[0] = int.from_bytes(b"rankdeck", "little")

    def phase(self, phase):
        with self.lock:
            now = self.now()
            self.words[_LOCK] |= 1
            self.words[_BODY] = phase
            self.words[_BODY + 1] = self.words[_BODY + 3] = now
            self.words[_LOCK] += 1

    def group(self, handle, name, size, sequence):
        """[slot, entered, left, chain, last, words of the name, size, difference to the library's sequence number]"""
        known = self.groups.get(name)
        if known is None:
            slot = 0 if handle is None else len(self.groups) + (0 if "world" in self.groups else 1)
            known = [slot, 0, 0, 0, 0, _words(name, 16), size, sequence() if sequence else 0, sequence]
            if handle is not None or "world" not in self.groups:
                self.groups[name] = known
            with self.lock:
                self.words[_LOCK] |= 1
                self._write_group(known)
                self.words[_LOCK] += 1
        return known

    def _write_group(self, group):
        if group[0] < _GROUPS:
            at = (_GROUPS_START + group[0] * _GROUP_WORDS) * 8
            self.group_entry.pack_into(self.map, at, *group[5], group[6], group[1], group[2], group[3], group[4], 0)

    def _site(self, frame):
        code, line = frame.f_code, frame.f_lineno
        # By identity: hashing a code object reads all of it. It is kept, so that its identity stays its own.
        key = (id(code), line)
        number, _ = self.sites.get(key, _NOWHERE)
        if number is None:
            text = "%s:%d" % (code.co_filename, line)
            number = 0xCBF29CE484222325
            for byte in text.encode("utf-8", "replace"):
                number = ((number ^ byte) * _PRIME) & _MASK
            if len(self.sites) < 4096:
                index = len(self.sites)
                self.sites[key] = (number, code)
                if index < _SITES:
                    data = text.encode("utf-8", "replace")[-_SITE_TEXT:].ljust(_SITE_TEXT, b"\0")
                    at = (_SITES_START + index * 8) * 8
                    self.words[_LOCK] |= 1
                    self.words[at // 8] = number
                    self.map[at + 8:at + 64] = data
                    self.words[_LOCK] += 1
        return number

    def _enter(self, group, op, tag, count, size, dtype, root, frame, now):
        self.entered += 1
        group[1] += 1
        group[4] = self.entered
        chain = group[3]
        for word in (op, tag[0], tag[1], count, size, dtype, root):
            chain = ((chain ^ word) * _PRIME) & _MASK
        group[3] = chain
        site = self._site(frame) if frame is not None else 0
        words = self.words
        entry = [self.entered, op, tag[0], tag[1], count, size, dtype, now, 0, site, group[0], group[1], chain,
                 self.updates, root]
        words[_LOCK] |= 1
        words[_BODY + 3] = now
        words[_BODY + 9] = self.entered
        if group[0] == 0:
            words[_BODY + 11] = chain
        self.ring_entry.pack_into(self.map, (_RING_START + self.entered % _RING * _RING_WORDS) * 8, *entry)
        self._write_group(group)
        words[_LOCK] += 1
        return entry

    def _leave(self, group, entry, now):
        entry[8] = now
        self.wait += now - entry[7]
        self.left = max(self.left, entry[0])
        group[2] = max(group[2], entry[11])
        words = self.words
        words[_LOCK] |= 1
        words[_BODY + 3] = now
        words[_BODY + 10] = self.left
        words[_BODY + 16] = self.wait
        if self.entered - entry[0] < _RING:
            self.ring_entry.pack_into(self.map, (_RING_START + entry[0] % _RING * _RING_WORDS) * 8, *entry)
        self._write_group(group)
        words[_LOCK] += 1

    def catch_up(self, group, completed=None):
        """Counts what C++ has issued in a group since the last look; to be called with the lock."""
        if group[8] is None:
            return
        missing = group[8]() - group[7] - group[1]
        if self.open is not None and self.open[0] is group:
            # The call that Python is inside of may or may not have its number yet.
            return
        if missing < 0 or missing > 100000:
            group[7] += missing
            return
        now = self.now()
        for _ in range(missing):
            entry = self._enter(group, 0, _CPP, 0, 0, 0, 0, None, now)
            group[9:] = [entry]
        if len(group) > 9 and group[9] is not None:
            if completed is None or completed - group[7] >= group[9][11]:
                self._leave(group, group[9], now)
                group[9] = None

    def settle(self, group):
        """Whatever numbers the library has given away inside a call of Python were not for collectives; to be called with the lock."""
        if group[8] is not None:
            group[7] = group[8]() - group[1]

    def step(self):
        """An optimiser step ends: the iteration of a script that tells nothing else."""
        with self.lock:
            world = self.groups.get("world")
            if world is None:
                return
            self.catch_up(world)
            now = self.now()
            self.updates += 1
            words = self.words
            at = _ITERATIONS_START + self.updates % _ITERATIONS * _ITERATION_WORDS
            words[_LOCK] |= 1
            words[_BODY + 3] = now
            words[_BODY + 4] = words[_BODY + 8] = self.updates
            for offset, word in enumerate((self.updates, world[1], world[3], now, self.wait)):
                words[at + offset] = word
            words[_LOCK] += 1


_NOWHERE = (None, None)
_CPP = _words("in C++", 16)
_TAGS = {name: _words(name, 16) for name in _OPS}


class _Hook:
    def __init__(self, module):
        self.module = module
        self.torch_dir = os.path.dirname(os.path.dirname(os.path.abspath(module.__file__)))
        self.inside = False
        self.known = {}
        self.world = None
        # Dtypes by themselves: their text takes longer to make than all the rest.
        torch = sys.modules["torch"]
        self.dtypes = {getattr(torch, name): told for name, told in _DTYPES.items() if hasattr(torch, name)}
        self.theirs = {}

    def group(self, given):
        """The page's entry of a process group, `None` where this rank is no member."""
        if given is None and self.world is not None:
            return self.world
        module = self.module
        handle = given if given is not None else module._get_default_group()
        known = self.known.get(id(handle))
        if known is not None and known[0] is handle:
            return known[1]
        if handle is module._get_default_group():
            name = "world"
        else:
            members = module.get_process_group_ranks(handle)
            name = "%s:%s" % (module._get_process_group_name(handle), ",".join(map(str, members)))
        try:
            handle._get_sequence_number_for_group()
            sequence = handle._get_sequence_number_for_group
        except Exception:
            sequence = None
        entry = _page.group(None if name == "world" else handle, name[:16], handle.size(), sequence)
        _page.groups[name[:16]] = entry
        self.known[id(handle)] = (handle, entry)
        if name == "world":
            self.world = entry
        return entry

    def is_theirs(self, file):
        """The file belongs to PyTorch."""
        told = self.theirs.get(file)
        if told is None:
            told = self.theirs[file] = file.startswith(self.torch_dir)
        return told

    def wrap(self, name, function):
        import functools
        import inspect

        op, amount, root = _OPS[name]
        tag = _TAGS[name]
        parameters = list(inspect.signature(function).parameters)
        at_group = parameters.index("group")
        at_async = parameters.index("async_op") if "async_op" in parameters else -1
        at_amount = parameters.index(amount) if amount in parameters else -1
        at_root = parameters.index(root) if root in parameters else -1
        hook = self

        def argument(args, kwargs, at):
            if at < 0:
                return None
            return args[at] if at < len(args) else kwargs.get(parameters[at])

        def begin(args, kwargs, frame):
            page = _page
            group = hook.group(argument(args, kwargs, at_group))
            count = size = dtype = 0
            tensors = argument(args, kwargs, at_amount)
            if tensors is not None:
                for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
                    dtype, width = hook.dtypes.get(tensor.dtype) or (8, tensor.element_size())
                    elements = tensor.numel()
                    count += elements
                    size += elements * width
            source = argument(args, kwargs, at_root)
            while frame is not None and hook.is_theirs(frame.f_code.co_filename):
                frame = frame.f_back
            with page.lock:
                page.catch_up(group)
                entry = page._enter(group, op, tag, count, size, dtype, 0 if source is None else source + 1, frame, page.now())
                page.open = (group, entry)
            return group, entry

        def end(token, finished):
            page = _page
            if page is None:
                return
            group, entry = token
            with page.lock:
                page.open = None
                if finished:
                    page._leave(group, entry, page.now())
                    page.settle(group)
                elif len(group) == 9 or group[9] is None:
                    group[9:] = [entry]

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if _page is None or hook.inside:
                return function(*args, **kwargs)
            hook.inside = True
            token = None
            try:
                try:
                    token = begin(args, kwargs, sys._getframe(1))
                except Exception:
                    pass
                return function(*args, **kwargs)
            finally:
                hook.inside = False
                if token is not None:
                    try:
                        # An asynchronous one is over when the group says so, or when a later one is.
                        end(token, not argument(args, kwargs, at_async) or token[0][8] is None or _page.fr is None)
                    except Exception:
                        pass

        return wrapper

    def wrap_pair(self, function):
        import functools
        import inspect

        parameters = list(inspect.signature(function).parameters)
        at = parameters.index("group") if "group" in parameters else -1
        hook = self

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            group = None
            if _page is not None and not hook.inside:
                try:
                    given = (args[at] if at < len(args) else kwargs.get("group")) if at >= 0 else args[0][0].group
                    group = hook.group(given)
                    with _page.lock:
                        _page.catch_up(group)
                        _page.open = (group, None)
                except Exception:
                    group = None
            try:
                return function(*args, **kwargs)
            finally:
                if group is not None:
                    try:
                        with _page.lock:
                            _page.open = None
                            _page.settle(group)
                    except Exception:
                        pass

        return wrapper

    def install(self):
        module = self.module
        for name in _PAIRS:
            function = getattr(module, name, None)
            if callable(function):
                try:
                    setattr(module, name, self.wrap_pair(function))
                except Exception:
                    pass
        for name in _OPS:
            function = getattr(module, name, None)
            if callable(function):
                try:
                    setattr(module, name, self.wrap(name, function))
                except Exception:
                    pass
        begin, end = module.init_process_group, module.destroy_process_group
        import functools

        @functools.wraps(begin)
        def init_process_group(*args, **kwargs):
            if not module.is_initialized():
                _open_page()
            result = begin(*args, **kwargs)
            try:
                if _page is not None:
                    self.started()
            except Exception:
                pass
            return result

        @functools.wraps(end)
        def destroy_process_group(*args, **kwargs):
            try:
                self.known.clear()
                self.world = None
                if _page is not None and (args or kwargs.get("group")) is None or not (args or kwargs):
                    _page and _page.phase(_TEARDOWN)
            except Exception:
                pass
            return end(*args, **kwargs)

        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group

    def started(self):
        page = _page
        try:
            from torch._C._distributed_c10d import _dump_fr_trace_json

            _dump_fr_trace_json(False, False)
            page.fr = _dump_fr_trace_json
        except Exception:
            page.fr = None
        self.group(None)
        page.phase(_LEARN)
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            def stepped(*_):
                try:
                    if _page is not None:
                        _page.step()
                except Exception:
                    pass

            register_optimizer_step_post_hook(stepped)
        except Exception:
            pass
        import atexit
        import threading

        over = threading.Event()
        thread = threading.Thread(target=self.poll, args=(over,), name="rankdeck", daemon=True)

        def finish():
            # A thread inside C++ when the interpreter ends would take the process down with it.
            over.set()
            thread.join(2.0)

        atexit.register(finish)
        thread.start()

    def poll(self, over):
        """Sees what C++ issues, and answers requests for the Flight Recorder."""
        import json

        answered = 0
        pid = os.getpid()
        while not over.wait(0.2):
            page = _page
            if page is None or os.getpid() != pid:
                return
            try:
                status = {}
                if page.fr is not None:
                    try:
                        status = json.loads(page.fr(False, False)).get("pg_status", {})
                    except Exception:
                        page.fr = None
                for handle, group in list(self.known.values()):
                    told = status.get(self.module._get_process_group_name(handle), {})
                    completed = told.get("last_completed_collective")
                    with page.lock:
                        page.catch_up(group, None if completed is None else int(completed))
                request = page.words[_REQUEST]
                if request != answered and page.fr is not None:
                    answered = request
                    temporary = page.path + ".fr.tmp"
                    with open(temporary, "wb") as file:
                        file.write(page.fr(True, False))
                    os.replace(temporary, page.path + ".fr")
                    page.words[_ANSWER] = request
            except Exception:
                pass


def _open_page():
    global _page
    if _page is not None:
        return
    try:
        owner = os.environ.get("RANKDECK_HOOK_PID")
        if owner and owner != str(os.getpid()):
            return
        _page = _Page(os.environ["RANKDECK_STATUS_PAGE"], int(os.environ["RANK"]), int(os.environ.get("RANKDECK_GENERATION", "0")))
        os.environ["RANKDECK_HOOK_PID"] = str(os.getpid())
        os.register_at_fork(after_in_child=_forget)
    except Exception:
        _page = None


def _forget():
    global _page
    _page = None


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
            _Hook(module).install()
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

    own = os.path.dirname(os.path.abspath(__file__))
    rest = [path for path in sys.path if os.path.abspath(path or os.curdir) != own]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("RANK") and os.environ.get("RANKDECK_STATUS_PAGE") and sys.version_info >= (3, 8):
    sys.meta_path.insert(0, _Finder)
_chain()
