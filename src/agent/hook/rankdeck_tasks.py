"""Where the tasks of the program's event loop wait: the lines of their `await`, which no stack of a thread shows.

Owner: the rank's interpreter; the hook's own thread calls `waiting` when the agent inspects the rank.
"""

import sys

_MOST, _FRAMES = 16, 32


def _loop_and_main(thread):
    """The event loop that a thread runs, and the future that it runs it for; `None` without one."""
    frame = sys._current_frames().get(thread)
    loop = main = None
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if file.endswith("base_events.py") and name in ("run_forever", "run_until_complete"):
            loop = frame.f_locals.get("self", loop)
            main = frame.f_locals.get("future", main)
        frame = frame.f_back
    return loop, main


def _frames(coroutine):
    """Of a suspended coroutine or generator, the innermost first: what each of them waits for has frames of its own."""
    found = []
    while coroutine is not None and len(found) < _FRAMES:
        frame = None
        for prefix, awaited in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(coroutine, prefix + "_frame"):
                frame, following = getattr(coroutine, prefix + "_frame"), getattr(coroutine, awaited)
                break
        if frame is None:
            break
        found.append([frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno])
        coroutine = following
    return found[::-1]


def waiting(thread):
    """Name and frames of each task that waits, that of the whole program first."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return []
    loop, main = _loop_and_main(thread)
    if loop is None:
        return []
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: (task is not main, task.get_name()))
    found = [{"name": task.get_name(), "frames": _frames(task.get_coro())} for task in tasks if not task.done()]
    return [task for task in found if task["frames"]][:_MOST]
