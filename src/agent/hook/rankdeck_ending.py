"""Reports how the main program of a rank ends: one line on the agent's event socket (`RANKDECK_EVENTS`, see docs/reporting.md).

Owner: the rank's interpreter, which loads this when an exception was not caught (HOOK-5), or when the main program has returned (HOOK-7).
"""

import os
import sys

_CHAIN = 8
_CAUSES = 64
_TEXT = 4000
_CAUSE_TEXT = 1000
_CHILDREN = 256
# Of exceptions that report that the other end of a pipe or of a pool of processes is gone.
_GONE = {"EOFError", "ConnectionError", "BrokenExecutor", "ChildProcessError"}
# Generators, coroutines and asynchronous generators.
_SUSPENDED = 0x20 | 0x80 | 0x200


def report(value, thread, ends):
    """`thread` is the name of the one that ended, empty for the main thread; `ends`: the rank does not survive it."""
    if isinstance(value, (SystemExit, KeyboardInterrupt)):
        return
    kind = type(value)
    frames = _frames(value.__traceback__)
    number = _errno(value, frames)
    event = {
        "kind": "exception",
        "class": _name(value),
        "bases": [base.__name__ for base in kind.__mro__[1:-1]][:16],
        "message": _text(value),
        "errno": number,
        "at": _place(frames),
        "thread": thread,
        "failure": _failure(kind, number),
    }
    causes = _causes(value)
    if causes:
        event["cause"] = "%s: %s" % (_name(causes[-1]), _text(causes[-1])[:_CAUSE_TEXT])
    child = next(filter(None, map(_failed_rank, [value] + causes)), None)
    if child is None and any(_is_gone(one) for one in [value] + causes):
        child = _dead_child()
    if child is not None:
        event["child"] = child
    if not ends:
        event["survivable"] = True
    elif not thread:
        _mark()
    _send(event)


def returned():
    """The main program has returned; exit handlers come next."""
    _mark()
    _send({"kind": "returned"})


def begins_inner(rank, size, backend, at):
    """A rank of the program's own begins to form its group (HOOK-9)."""
    _send({"kind": "inner_rank", "pid": os.getpid(), "rank": rank, "world_size": size, "backend": backend, "at": at})


def _mark():
    if _is_wrapped():
        with open(_marker(), "w"):
            pass


def take_back():
    os.unlink(_marker())
    _send({"kind": "survived"})


def _marker():
    return os.environ["RANKDECK_STATUS_PAGE"] + ".raised"


def _is_wrapped():
    """The rank's process is a shell, or another program, that has started this one: it may start others."""
    try:
        with open("/proc/%d/environ" % os.getppid(), "rb") as file:
            return b"\0RANKDECK_RANK=" in b"\0" + file.read()
    except OSError:
        return False


def ends(trace):
    """The exception has left the outermost frame of the program; a frame that catches and shows one still runs, or has a caller."""
    frame = trace.tb_frame if trace is not None else None
    if frame is None or frame.f_back is not None or frame.f_code.co_flags & _SUSPENDED:
        return False
    caller = sys._getframe()
    while caller is not None:
        if caller is frame:
            return False
        caller = caller.f_back
    return True


def _send(event):
    import json
    import socket
    import struct

    hello = {"kind": "hello", "rank": int(os.environ["RANKDECK_RANK"]), "generation": int(os.environ.get("RANKDECK_GENERATION", "0"))}
    lines = (hello, event)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(1.0)
        stream.connect(os.environ["RANKDECK_EVENTS"])
        _, uid, _ = struct.unpack("iII", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
        if uid not in (os.geteuid(), 0):
            return
        stream.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())


def _failure(kind, number):
    """The kind by the exception's type, whatever its text; None for a library's exception, which only its text describes."""
    import errno

    names = {base.__name__ for base in kind.__mro__}
    if number == errno.ENOMEM or names & {"MemoryError", "OutOfMemoryError"}:
        return "out_of_memory"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if number == errno.EADDRINUSE:
        return "port_taken"
    library = kind in (RuntimeError, SystemError) or kind.__module__.split(".")[0] == "torch"
    return None if library else "other"


def _text(value):
    try:
        return str(value)[:_TEXT]
    except Exception:
        return ""


def _name(value):
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    return module + kind.__qualname__


def _causes(value):
    """The exceptions that this one was raised from, or while they were handled, the first one last."""
    found = []
    known = {id(value)}
    while len(found) < _CAUSES:
        cause = value.__cause__
        if cause is None and not value.__suppress_context__:
            cause = value.__context__
        if cause is None or id(cause) in known or isinstance(cause, (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt)):
            break
        known.add(id(cause))
        found.append(cause)
        value = cause
    return found


def _is_gone(value):
    names = {base.__name__ for base in type(value).__mro__}
    return bool(names & _GONE) or "RuntimeError" in names and "worker" in _text(value)


def _failed_rank(value):
    """Of an exception of a launcher of ranks (`torch.multiprocessing.spawn`, torchrun) the rank whose end it reports."""
    try:
        if hasattr(value, "error_index") and hasattr(value, "exit_code"):
            pid = value.pid if hasattr(value, "pid") else value.error_pid
            rank, code = value.error_index, value.exit_code
        elif hasattr(value, "get_first_failure"):
            rank, failure = value.get_first_failure()
            pid, code = failure.pid, failure.exitcode
        else:
            return None
        return _ended(int(pid), "rank %s of its own" % rank, int(code)) if code else None
    except Exception:
        return None


def _ended(pid, name, code):
    end = {"how": "signal", "signal": -code, "out_of_memory": False} if code < 0 else {"how": "code", "code": code}
    return {"pid": pid, "name": name, "exit": end}


def _dead_child():
    """The child of this process that died, one that a signal ended first; it is not waited for here."""
    dead = []
    for pid in _children():
        try:
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            continue
        if status is not None:
            by_signal = status.si_code != os.CLD_EXITED
            dead.append((pid, _process_name(pid), -status.si_status if by_signal else status.si_status))
    processes = sys.modules.get("multiprocessing.process")
    for process in list(getattr(processes, "_children", ())):
        # One that the program has waited for already.
        code = getattr(getattr(process, "_popen", None), "returncode", None)
        if code is not None:
            dead.append((process._popen.pid, str(process.name), code))
    # A program ends its own children by SIGTERM.
    dead = sorted((code not in (-15, -2), code < 0, pid, name, code) for pid, name, code in dead if code != 0)
    if not dead:
        return None
    _, _, pid, name, code = dead[-1]
    return _ended(pid, name, code)


def _children():
    found = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % thread) as file:
                found += [int(pid) for pid in file.read().split()]
    except OSError:
        pass
    return found[:_CHILDREN]


def _process_name(pid):
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return ""


def _frames(trace):
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames


def _place(frames):
    """The innermost frame of the program's own code, or else the innermost one that is not of the hook."""
    hook = os.path.dirname(os.path.abspath(__file__)) + os.sep
    libraries = tuple(os.path.join(prefix, "lib") + os.sep for prefix in {sys.prefix, sys.base_prefix})
    torch = sys.modules.get("torch")
    if getattr(torch, "__file__", None):
        libraries += (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,)
    named = [(frame.f_code.co_filename, line) for frame, line in frames]
    named = [place for place in named if not os.path.abspath(place[0]).startswith(hook)]
    own = [place for place in named if not place[0].startswith(libraries) and not place[0].startswith("<")]
    return "%s:%d" % (own or named)[-1] if named else ""


def _errno(value, frames):
    """The number of the system's error: its own, or that of one that it was raised from."""
    for _ in range(_CHAIN):
        if isinstance(value, OSError) and isinstance(value.errno, int):
            return value.errno
        value = value.__cause__
        if value is None:
            break
    return _full(frames)


def _full(frames):
    """`torch.save` on a full disk names neither the file nor the cause: the file system does."""
    for frame, _ in frames:
        if frame.f_code.co_name != "save" or not frame.f_code.co_filename.endswith(os.path.join("torch", "serialization.py")):
            continue
        path = frame.f_locals.get("f")
        if isinstance(path, (str, os.PathLike)):
            import errno

            room = os.statvfs(os.path.dirname(os.path.abspath(path)))
            return errno.ENOSPC if room.f_bavail < 16 else None
    return None
