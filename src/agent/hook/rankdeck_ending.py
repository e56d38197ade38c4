"""Reports the exception that ends a rank: one line on the agent's event socket (`RANKDECK_EVENTS`, see docs/reporting.md).

Owner: the rank's interpreter, which loads this when an exception was not caught (HOOK-5).
"""

import os
import sys

_CHAIN = 8
_TEXT = 4000
# Generators, coroutines and asynchronous generators.
_SUSPENDED = 0x20 | 0x80 | 0x200


def report(value, thread, ends):
    """`thread` is the name of the one that ended, empty for the main thread; `ends`: the rank does not survive it."""
    if isinstance(value, (SystemExit, KeyboardInterrupt)):
        return
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    frames = _frames(value.__traceback__)
    number = _errno(value, frames)
    event = {
        "kind": "exception",
        "class": module + kind.__qualname__,
        "bases": [base.__name__ for base in kind.__mro__[1:-1]][:16],
        "message": _text(value),
        "errno": number,
        "at": _place(frames),
        "thread": thread,
        "failure": _failure(kind, number),
    }
    if not ends:
        event["survivable"] = True
    elif not thread and _is_wrapped():
        with open(_marker(), "w"):
            pass
    _send(event)


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


def _frames(trace):
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames


def _place(frames):
    """The innermost frame of the program's own code, or else the innermost one."""
    libraries = tuple(os.path.join(prefix, "lib") + os.sep for prefix in {sys.prefix, sys.base_prefix})
    torch = sys.modules.get("torch")
    if getattr(torch, "__file__", None):
        libraries += (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,)
    named = [(frame.f_code.co_filename, line) for frame, line in frames]
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
