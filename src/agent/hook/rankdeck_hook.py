"""Watches PyTorch's process groups: wraps the functions of `torch.distributed` and writes what they do to the status page.

Owner: the interpreter of a rank, which loads this when it imports `torch.distributed`; the rules stand at the head of sitecustomize.py.
"""

import os
import sys
from _thread import get_ident as _get_ident

import rankdeck_page as pages
from rankdeck_page import ANSWER, LEARN, REQUEST, TEARDOWN, words_of

# Function: (number of the operation on the page, name of the parameter for the amount, name of the
# parameter that is its root).
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

# Point-to-point calls: some libraries give them numbers, but they are not collectives. Each pair of ranks has
# a group of its own on the page, which both count, so that it shows who waits for whom.
_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_PEER = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}
_PAIR_OP = 10
# Groups of the program come first: a page has room for 16.
_PAIR_GROUPS = 10

_TAGS = {name: words_of(name, 16) for name in _OPS}
_PAIR_TAG = words_of("", 16)


def _even(outputs, inputs):
    """The number of elements and the first tensor of an exchange in equal parts; 0 where parts may differ."""
    tensors = [*outputs, *inputs]
    sizes = {tensor.numel() for tensor in tensors}
    return (len(inputs) * sizes.pop(), tensors[0]) if len(sizes) == 1 else (0, None)


def _number(text):
    try:
        return int(text)
    except (TypeError, ValueError):
        return -1


def _arguments(given):
    """Rank, size, address and port of a call of `init_process_group`, as `torch.distributed.rendezvous` reads them; -1, "" and 0 where unknown."""
    rank, size = _number(given.get("rank", -1)), _number(given.get("world_size", -1))
    if given.get("store") is not None:
        return rank, size, "", 0
    from urllib.parse import parse_qs, urlparse

    url = urlparse(given.get("init_method") or "env://")
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    rank = rank if rank >= 0 else _number(asked.get("rank", os.environ.get("RANK")))
    size = size if size >= 0 else _number(asked.get("world_size", os.environ.get("WORLD_SIZE")))
    if url.scheme == "env":
        return rank, size, os.environ.get("MASTER_ADDR", ""), _number(os.environ.get("MASTER_PORT"))
    if url.scheme == "tcp":
        return rank, size, url.hostname or "", url.port or 0
    return rank, size, url.path if url.scheme == "file" else "", 0


def _backend(given):
    """The name of the only backend; empty for several, one for each kind of device, and where PyTorch chooses."""
    name = str(given.get("backend") or "").lower()
    return "" if ":" in name or name == "undefined" else name


class Hook:
    def __init__(self, module, load):
        """`load` imports a module that lies next to this one."""
        self.module, self.load = module, load
        self.watched = False
        self.torch_dir = os.path.dirname(os.path.dirname(os.path.abspath(module.__file__))) + os.sep
        self.standard = os.path.dirname(os.__file__) + os.sep
        self.own = os.path.dirname(os.path.abspath(__file__)) + os.sep
        self.known = {}
        self.world = None
        # Dtypes by themselves: their text takes longer to make than all the rest.
        torch = sys.modules["torch"]
        self.dtypes = {getattr(torch, name): number for name, number in _DTYPES.items() if hasattr(torch, name)}
        self.theirs = {}
        import threading

        import weakref

        # What `isend` and `irecv` gave back, and their calls on the page, until they are waited for.
        self.posted = weakref.WeakKeyDictionary()
        # Some of PyTorch's calls are made of others: each thread counts the outermost.
        self.local = threading.local()
        # The thread that trains, and whether it has shown so.
        self.trainer, self.is_sure = None, False

    def counts(self, shows=False):
        """HOOK-6: what this thread does belongs to the training loop; `shows`: it does what only such a thread does."""
        own = _get_ident()
        if own == self.trainer:
            self.is_sure = self.is_sure or shows
            return True
        if not self.is_started(own):
            return True
        if shows and not self.is_sure or self.trainer not in sys._current_frames():
            self.trainer, self.is_sure = own, shows
            return True
        return False

    def is_started(self, own):
        """Python has started this thread: C++ runs hooks of the training loop in threads of its own, such as those of autograd."""
        started = getattr(self.local, "started", None)
        if started is None:
            import threading

            thread = threading._active.get(own)
            started = self.local.started = thread is not None and not isinstance(thread, threading._DummyThread)
        return started

    def leave_to_others(self, given):
        """A thread that does not train calls something in this group: from now on, numbers of that group do not describe the training loop."""
        known = None if given is None else self.known.get(id(given))
        if known is not None and known[0] is given and known[1] is not self.world and known[1][8] is not None:
            with pages.page.lock:
                pages.page.catch_up(known[1])
                known[1][8] = None

    def group(self, given):
        """The page's entry of a process group, `None` if this rank is not a member."""
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
        entry = pages.page.group(None if name == "world" else handle, name[:16], handle.size(), sequence)
        pages.page.groups[name[:16]] = entry
        self.known[id(handle)] = (handle, entry)
        if name == "world":
            self.world = entry
        return entry

    def is_theirs(self, file):
        """The file belongs to PyTorch, to Python's own library or to this hook."""
        known = self.theirs.get(file)
        if known is None:
            standard = file.startswith(self.standard) and "-packages" + os.sep not in file
            known = self.theirs[file] = standard or file.startswith((self.torch_dir, self.own)) or file.startswith("<frozen ")
        return known

    def caller(self, frame):
        """The innermost frame of the program or of one of its libraries; `None` without one."""
        while frame is not None and self.is_theirs(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def wrap(self, name, function):
        import functools
        import inspect

        (op, amount, root), tag = _OPS[name], _TAGS[name]
        parameters = list(inspect.signature(function).parameters)
        at_group = parameters.index("group")
        at_async = parameters.index("async_op") if "async_op" in parameters else -1
        at_amount = parameters.index(amount) if amount in parameters else -1
        at_root = parameters.index(root) if root in parameters else -1
        hook, module = self, self.module

        def argument(args, kwargs, at):
            if at < 0:
                return None
            return args[at] if at < len(args) else kwargs.get(parameters[at])

        def exchanged(args, kwargs):
            outputs, inputs = argument(args, kwargs, 0), argument(args, kwargs, 1)
            if name == "all_to_all":
                return _even(outputs, inputs)
            splits = [argument(args, kwargs, parameters.index(split)) or [] for split in ("output_split_sizes", "input_split_sizes")]
            return (0, None) if any(len(set(split)) > 1 for split in splits) else _even([outputs], [inputs])

        def begin(args, kwargs, frame):
            page = pages.page
            group = hook.group(argument(args, kwargs, at_group))
            count = size = dtype = 0
            tensors = argument(args, kwargs, at_amount)
            if op == 6:
                count, tensor = exchanged(args, kwargs)
                if count:
                    dtype, width = hook.dtypes.get(tensor.dtype) or (8, tensor.element_size())
                    size = count * width
            elif tensors is not None:
                for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
                    dtype, width = hook.dtypes.get(tensor.dtype) or (8, tensor.element_size())
                    elements = tensor.numel()
                    count += elements
                    size += elements * width
            source = argument(args, kwargs, at_root)
            frame = hook.caller(frame)
            with page.lock:
                page.catch_up(group)
                entry = page._enter(group, op, tag, count, size, dtype, 0 if source is None else source + 1, frame, page.now())
                page.open = (group, entry)
            return group, entry

        def end(token, finished):
            page = pages.page
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
            if pages.page is None or getattr(hook.local, "inside", False):
                return function(*args, **kwargs)
            hook.local.inside = True
            token = None
            try:
                try:
                    given = argument(args, kwargs, at_group)
                    if hook.counts(given is None or given is module._get_default_group()):
                        token = begin(args, kwargs, sys._getframe(1))
                    else:
                        hook.leave_to_others(given)
                except Exception:
                    pass
                return function(*args, **kwargs)
            finally:
                hook.local.inside = False
                if token is not None:
                    try:
                        # An asynchronous one is over when the group reports it, or when a later one is.
                        end(token, not argument(args, kwargs, at_async) or token[0][8] is None or pages.page.fr is None)
                    except Exception:
                        pass

        return wrapper

    def pair(self, name, peer):
        """The page's entry of this rank and another one, `None` where there is no room for it."""
        own, page = self.module.get_rank(), pages.page
        text = "%d>%d" % ((own, peer) if name in ("send", "isend") else (peer, own))
        if text not in page.groups and len(page.groups) >= _PAIR_GROUPS or len(text) > 16:
            return None
        return page.group(text, text, 2, None)

    def wrap_pair(self, name, function):
        import functools
        import inspect

        parameters = list(inspect.signature(function).parameters)
        at = parameters.index("group") if "group" in parameters else -1
        at_peer = parameters.index(_PEER[name]) if _PEER.get(name) in parameters else -1
        in_group = "group_" + _PEER.get(name, "")
        hook = self

        def enter(args, kwargs, frame, peer=None):
            """The call as one of its pair; to be called with the lock."""
            if name not in _PEER:
                return None
            if peer is None:
                peer = (args[at_peer] if at_peer < len(args) else kwargs.get(parameters[at_peer])) if at_peer >= 0 else None
            if peer is None and kwargs.get(in_group) is not None:
                given = args[at] if at < len(args) else kwargs.get("group")
                peer = hook.module.get_global_rank(given or hook.module._get_default_group(), kwargs[in_group])
            if peer is None:
                return None
            frame = hook.caller(frame)
            page = pages.page
            pair = hook.pair(name, int(peer))
            if pair is None:
                return None
            with page.lock:
                entry = page._enter(pair, _PAIR_OP, _PAIR_TAG, 0, 0, 0, 0, frame, page.now())
                if name in ("isend", "irecv"):
                    page._leave(pair, entry, page.now())
            return pair, entry

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            group = None
            if getattr(hook.local, "pairing", False):
                return function(*args, **kwargs)
            if pages.page is not None and not getattr(hook.local, "inside", False):
                try:
                    if hook.counts():
                        given = (args[at] if at < len(args) else kwargs.get("group")) if at >= 0 else args[0][0].group
                        group = hook.group(given)
                        with pages.page.lock:
                            pages.page.catch_up(group)
                            pages.page.open = (group, None)
                except Exception:
                    group = None
            token, result, finished, posted = None, None, False, name in ("isend", "irecv")
            if group is not None:
                try:
                    token = enter(args, kwargs, sys._getframe(1))
                except Exception:
                    pass
            hook.local.pairing = name in _PEER
            try:
                result = function(*args, **kwargs)
                finished = True
                return result
            finally:
                hook.local.pairing = False
                if group is not None:
                    try:
                        if token is None and name == "recv" and type(result) is int:
                            # From whom it came is known now.
                            token = enter(args, kwargs, None, result)
                        with pages.page.lock:
                            if token is not None and finished and not posted:
                                pages.page._leave(*token, pages.page.now())
                            pages.page.open = None
                            pages.page.settle(group)
                        if token is not None and posted and result is not None:
                            hook.posted[result] = token
                    except Exception:
                        pass

        return wrapper

    def wrap_wait(self, work):
        """`wait` of what `isend` and `irecv` give back: who waits there waits for the other rank of the pair."""
        import functools

        function, hook = work.wait, self

        @functools.wraps(function)
        def wait(self, *args, **kwargs):
            token = None
            if hook.posted and pages.page is not None:
                try:
                    posted = hook.posted.pop(self, None) if hook.counts() else None
                    if posted is not None:
                        with pages.page.lock:
                            token = pages.page._reenter(*posted, pages.page.now())
                except Exception:
                    token = None
            result = function(self, *args, **kwargs)
            if token is not None:
                try:
                    with pages.page.lock:
                        pages.page._releave(token, pages.page.now())
                except Exception:
                    pass
            return result

        work.wait = wait

    def install(self):
        module = self.module
        try:
            self.wrap_wait(module.Work)
        except Exception:
            pass
        for name in _PAIRS:
            function = getattr(module, name, None)
            if callable(function):
                try:
                    setattr(module, name, self.wrap_pair(name, function))
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
        import inspect

        @functools.wraps(begin)
        def init_process_group(*args, **kwargs):
            if not module.is_initialized():
                given, is_inner = None, False
                try:
                    given = inspect.signature(begin).bind(*args, **kwargs).arguments
                    is_inner = pages.is_inner(_arguments(given)[1])
                except Exception:
                    pass
                if not is_inner:
                    pages.open_page()
                try:
                    pages.joins()
                    if pages.is_beside():
                        self.tell_of_inner(given, self.caller(sys._getframe(1)))
                    if pages.page is not None:
                        pages.page.begins(*_arguments(given), _backend(given), self.caller(sys._getframe(1)))
                except Exception:
                    pass
            result = begin(*args, **kwargs)
            try:
                if pages.page is not None:
                    self.started()
            except Exception:
                pass
            return result

        @functools.wraps(end)
        def destroy_process_group(*args, **kwargs):
            try:
                self.known.clear()
                self.world = None
                if pages.page is not None and (args or kwargs.get("group")) is None or not (args or kwargs):
                    pages.page and pages.page.phase(TEARDOWN)
            except Exception:
                pass
            return end(*args, **kwargs)

        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group

    def tell_of_inner(self, given, frame):
        """HOOK-9"""
        if pages.inner == os.getpid():
            return
        pages.inner = os.getpid()
        rank, size, _, _ = _arguments(given)
        try:
            pages.open_inner(rank)
        except Exception:
            pass
        at = "" if frame is None else "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        numbers = [None if number < 0 else number for number in (rank, size)]
        self.load("rankdeck_ending").begins_inner(*numbers, _backend(given), at)

    def started(self):
        page = pages.page
        self.trainer, self.is_sure = _get_ident(), False
        try:
            from torch._C._distributed_c10d import _dump_fr_trace_json

            _dump_fr_trace_json(False, False)
            page.fr = _dump_fr_trace_json
        except Exception:
            page.fr = None
        self.group(None)
        page.phase(LEARN)
        try:
            waits = self.load("rankdeck_input")
            waits.counts, waits.caller = self.counts, self.caller
        except Exception:
            pass
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            def stepped(*_):
                try:
                    if pages.page is not None and self.counts(True):
                        pages.page.step()
                except Exception:
                    pass

            register_optimizer_step_post_hook(stepped)
            if not self.watched and os.environ.get("RANKDECK_FINGERPRINTS") != "0":
                self.watched = True
                normalizers = sys.modules.get("rankdeck_normal")
                self.load("rankdeck_weights").watch(lambda: pages.page if self.counts(True) else None, normalizers)
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
            page = pages.page
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
                    entry = status.get(self.module._get_process_group_name(handle), {})
                    completed = entry.get("last_completed_collective")
                    with page.lock:
                        page.catch_up(group, None if completed is None else int(completed))
                request = page.words[REQUEST]
                if request != answered:
                    answered = request
                    self.answer(page)
                    page.words[ANSWER] = request
            except Exception:
                pass

    def answer(self, page):
        """Writes what an inspection asks for: the tasks of the event loop, and the Flight Recorder's dump where there is one."""
        import json
        import threading

        def write(end, make):
            path = page.path + end
            try:
                with open(path + ".tmp", "wb") as file:
                    file.write(make())
                os.replace(path + ".tmp", path)
            except Exception:
                if os.path.exists(path):
                    # What an earlier inspection got is not the present.
                    os.unlink(path)

        thread = threading.main_thread().ident
        write(".tasks", lambda: json.dumps(self.load("rankdeck_tasks").waiting(thread)).encode())
        write(".fr", lambda: page.fr(True, False))
