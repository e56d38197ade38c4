"""Reports the progress of training to rankdeck. One file without dependencies, for Python 3.8 or newer.

    import rankdeck

    rankdeck.report(env_step=steps, loss=loss)       # on every rank, as often as you like
    rankdeck.eval(returns)                           # returns of the episodes of an evaluation
    rankdeck.checkpoint("last.pt")                   # once the file is complete
    rankdeck.histogram("actions", actions)           # a distribution of values
    rankdeck.image("seen", frame)                    # an image: PNG, a path, an array
    if rankdeck.should_stop(): break                 # `rankdeck stop`, or a time limit
    torch.manual_seed(rankdeck.seed())               # `run.seed`, `--seeds`
    env.reset(seed=rankdeck.seed(per_rank=True))     # differs per rank

Ranks can import it without installing it. To run the script without rankdeck as well, put this file next to it
(`rankdeck client > rankdeck.py`); there, its functions do nothing.

Rules:
- CLIENT-1: no function raises because of its arguments, waits for the agent, or takes longer while the agent is away.
- CLIENT-2: memory is bounded. Newer counters replace older ones; all other losses are counted and reported.
- CLIENT-3: only the process that has imported this reports: its forks do not, and SIGTERM ends them as usual.
- CLIENT-4: a value on a GPU is read at most four times a second.
- CLIENT-5: a few of each histogram and image are sent at once, then one a second; the others cost next to nothing
  and are counted.
"""

import atexit
import base64
import collections
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
import zlib

__all__ = ["checkpoint", "eval", "histogram", "image", "lost", "report", "seed", "should_stop"]

# Seconds between two reports that are sent: the agent reads as often.
_PERIOD = 0.25
# Seconds that a connection may take, that the agent may take to read, and that the end of the program waits
# for.
_CONNECT, _SEND, _LAST = 1.0, 30.0, 1.0
# Events that wait while the agent is away, their bytes; longest line of one without an image, bytes.
_WAITING, _WAITING_BYTES, _LINE = 256, 4 << 20, 60_000
# The chart of the returns.
_RETURN = "charts/episodic_return"
# Names of charts, and messages on stderr.
_NAMES, _MESSAGES = 256, 8
# Names of histograms and images; how many of a name are sent at once.
_LOGGED, _BURST = 48, {"histogram": 8, "image": 4}
# Most bins, bytes and pixels that the agent accepts.
_BINS, _PICTURE, _PIXELS, _SIDE = 64, 256 << 10, 4 << 20, 4096


def report(
    env_step, values=None, *, train_iter=None, samples=None, episodes=None, updates=None, returns=None, **metrics
):
    """Reports the progress of this rank.

    `env_step` counts the environment steps of this rank alone since the start of the run. `returns` has the returns of
    episodes that ended since the last call: a number or a sequence. All other values are charts, taken from rank 0:
    keywords, or a mapping `values` for names such as `losses/policy`.

    By default, `train_iter` counts the calls, `samples` equals `env_step`, and `episodes` counts `returns`.
    """
    _guarded(_client.report, env_step, values, train_iter, samples, episodes, updates, returns, metrics)


def eval(returns, lengths=None, *, env_step=None, train_iter=None, duration_s=0.0, stop=False):
    """Reports an evaluation: returns and lengths of its episodes. Only rank 0's calls count.

    `env_step` counts the steps of all ranks; by default, it is that of the latest report times the number of
    ranks. `stop` reports that the stop value was reached and the program is about to end.
    """
    _guarded(_client.eval, returns, lengths, env_step, train_iter, duration_s, stop)


def checkpoint(path, reason="latest", *, env_step=None, train_iter=None):
    """Reports a checkpoint; call it once the file is complete. Only rank 0's calls count."""
    _guarded(_client.checkpoint, path, reason, env_step, train_iter)


def histogram(name, values, *, env_step=None, train_iter=None):
    """Reports a distribution: a sequence of numbers, an array, or a pair `(edges, counts)` in either order.

    Only rank 0's calls count. More than 64 bins are merged into 64 of equal width.
    """
    _guarded(_client.histogram, name, values, env_step, train_iter)


def image(name, picture, *, env_step=None, train_iter=None):
    """Reports an image: the bytes of a PNG or GIF, a path to one, rows of numbers from 0 to 255, or an array.

    An array is height x width, optionally with 1, 3 or 4 channels first or last. Fractions from 0 to 1 are scaled to
    255. Only rank 0's calls count. If the PNG of an array exceeds 256 KiB, rows and columns are dropped until it fits;
    a larger file is rejected.
    """
    _guarded(_client.image, name, picture, env_step, train_iter)


def should_stop():
    """Returns true once rankdeck requests a stop: save, and leave the training loop.

    From the first call on, the first SIGTERM only sets this flag, and a second one ends the program. Ranks receive a
    stop at different times: if the loop has collectives, all-reduce the flag before you act on it.
    """
    return bool(_guarded(_client.should_stop))


def seed(per_rank=False):
    """Returns the seed of the run (`run.seed`), equal on all ranks; 0 outside rankdeck.

    With `per_rank`, returns a seed derived for this rank, the same in each generation: for environments and
    exploration, which must differ between ranks.
    """
    try:
        return int(os.environ.get("RANKDECK_RANK_SEED" if per_rank else "RANKDECK_SEED") or 0)
    except ValueError:
        return 0


def lost():
    """Returns the number of lost events."""
    return _client.lost


class _Client:
    def __init__(self, environ):
        self.pid = os.getpid()
        self.path = environ.get("RANKDECK_EVENTS")
        try:
            self.rank = int(environ["RANKDECK_RANK"]) if self.path else None
            self.generation = int(environ.get("RANKDECK_GENERATION") or 0)
            self.world_size = max(1, int(environ.get("WORLD_SIZE") or 1))
        except (KeyError, ValueError):
            self.rank = None
        self.device = environ.get("RANKDECK_DEVICE") or "cpu"
        # A signal handler of the program may call in here, too.
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.thread = None
        self.closed = False
        self.joined = False
        self.waiting = collections.deque()
        self.waiting_bytes = 0
        self.logged = {}
        self.skipped = 0
        self.calls = 0
        self.episodes = 0
        self.began = time.monotonic()
        # Not sent yet, and the latest that there were.
        self.counters = None
        self.latest = {"env_step": 0, "train_iter": 0}
        self.returns = _NONE
        self.scalars = {}
        self.not_finite = {}
        # When each name was read from something that is not a plain number.
        self.read = {}
        self.lost = 0
        self.messages = 0
        self.asked = False
        self.handler = None

    def is_active(self):
        return self.rank is not None and self.pid == os.getpid()

    # Called by the program.

    def report(self, env_step, values, train_iter, samples, episodes, updates, returns, metrics):
        if not self.is_active():
            return
        now = time.monotonic()
        step = max(0, int(env_step))
        numbered = () if returns is None else list(_numbers(returns))
        ended = [value for value in numbered if math.isfinite(value)]
        numbers = {}
        if self.rank == 0:
            for source in (values or {}, metrics):
                for name, value in source.items():
                    self._read(numbers, str(name), value, now)
        with self.lock:
            self.calls += 1
            self.episodes += len(ended)
            if self.rank == 0 and len(ended) < len(numbered):
                self.not_finite[_RETURN] = self.not_finite.get(_RETURN, 0) + len(numbered) - len(ended)
            for value in ended:
                total, count, low, high = self.returns
                low, high = (min(low, value), max(high, value)) if count else (value, value)
                self.returns = (total + value, count + 1, low, high)
            self.counters = self.latest = {
                "train_iter": self.calls if train_iter is None else max(0, int(train_iter)),
                "env_step": step,
                "samples": step if samples is None else max(0, int(samples)),
                "episodes": self.episodes if episodes is None else max(0, int(episodes)),
                "duration_s": now - self.began,
                "updates": 0 if updates is None else max(0, int(updates)),
            }
            for name, number in numbers.items():
                if math.isfinite(number):
                    self.scalars[name] = number
                else:
                    self.not_finite[name] = self.not_finite.get(name, 0) + 1
        self._start()

    def eval(self, returns, lengths, env_step, train_iter, duration_s, stop):
        if not self.is_active() or self.rank != 0:
            return
        played = [value for value in _numbers(returns) if math.isfinite(value)]
        if not played:
            raise ValueError("no return is a finite number")
        longs = () if lengths is None else _numbers(lengths)
        mean = math.fsum(played) / len(played)
        self._put(
            kind="eval",
            env_step=self._step(env_step),
            train_iter=self._iteration(train_iter),
            episodes=len(played),
            return_mean=mean,
            return_std=math.sqrt(math.fsum((value - mean) ** 2 for value in played) / len(played)),
            return_min=min(played),
            return_max=max(played),
            length_mean=math.fsum(longs) / len(longs) if longs else 0.0,
            duration_s=float(duration_s),
            stop=bool(stop),
        )

    def checkpoint(self, path, reason, env_step, train_iter):
        if not self.is_active() or self.rank != 0:
            return
        self._put(
            kind="checkpoint",
            path=os.fsencode(os.path.abspath(path)).decode("utf-8", "replace"),
            env_step=self._step(env_step),
            train_iter=self._iteration(train_iter),
            reason=str(reason),
        )

    def should_stop(self):
        if self.is_active() and self.handler is None:
            if threading.current_thread() is threading.main_thread():
                self._listen()
            else:
                self._print("should_stop: the first call must be in the main thread")
        return self.asked

    def _listen(self):
        before = signal.getsignal(signal.SIGTERM)
        if before is None:
            raise RuntimeError("SIGTERM has a handler that is not Python's")

        def request_stop(number, frame):
            second, self.asked = self.asked, True
            if callable(before):
                before(number, frame)
            elif second and before == signal.SIG_DFL:
                signal.signal(number, before)
                os.kill(os.getpid(), number)

        def forked():
            if signal.getsignal(signal.SIGTERM) is request_stop:
                signal.signal(signal.SIGTERM, before)

        self.handler = request_stop
        os.register_at_fork(after_in_child=forked)
        signal.signal(signal.SIGTERM, request_stop)

    def histogram(self, *arguments):
        self._log("histogram", _bins, *arguments)

    def image(self, *arguments):
        self._log("image", _picture, *arguments)

    def _log(self, kind, make, name, value, env_step, train_iter):
        """CLIENT-5"""
        if not self.is_active() or self.rank != 0:
            return
        name, now = str(name), time.monotonic()
        with self.lock:
            if (kind, name) not in self.logged and len(self.logged) >= _LOGGED:
                self.skipped += 1
                self._print("%s: %.60s: too many names" % (kind, name))
                return
            pace = self.logged.setdefault((kind, name), _Pace(_BURST[kind], now))
            if not pace.may_make(now):
                self.skipped += 1
                return
        event = {"kind": kind, "name": name, **make(value)}
        event.update(env_step=self._step(env_step), train_iter=self._iteration(train_iter))
        with self.lock:
            if pace.may_send(now):
                self._put(**event)
                return
            self.skipped += pace.event is not None
            pace.event = event
        self._start()

    def _due(self):
        """Histograms and images that are due; at the end, all."""
        now = time.monotonic()
        for pace in list(self.logged.values()):
            with self.lock:
                if pace.event is not None and (self.closed or pace.may_send(now)):
                    event, pace.event = pace.event, None
                    self._put(**event)

    # Values.

    def _read(self, numbers, name, value, now):
        """Puts a value that is to be sent among `numbers` (CLIENT-4)."""
        if not isinstance(value, (float, int)):
            if now - self.read.get(name, -math.inf) < _PERIOD:
                return
            if len(self.read) < _NAMES:
                self.read[name] = now
            try:
                value = float(value)
            except Exception:
                self.lost += 1
                self._print("report: %.60s is not a number but a %s; skipped" % (name, type(value).__name__))
                return
        if len(self.scalars) + len(numbers) >= _NAMES and name not in self.scalars:
            self.lost += 1
            return
        numbers[name] = float(value)

    def _step(self, given):
        return max(0, int(given)) if given is not None else self.latest["env_step"] * self.world_size

    def _iteration(self, given):
        return max(0, int(given)) if given is not None else self.latest["train_iter"]

    # Sending.

    def _put(self, **event):
        with self.lock:
            if event["kind"] in _BURST:
                event["skipped"], self.skipped = self.skipped, 0
            line = _line(event)
            long = len(line) > _LINE and event["kind"] != "image"
            full = len(self.waiting) >= _WAITING or self.waiting_bytes + len(line) > _WAITING_BYTES
            if long or full:
                self.lost += 1
                return
            self.waiting.append(line)
            self.waiting_bytes += len(line)
        self.wake.set()
        self._start()

    def _start(self):
        with self.lock:
            if self.thread is not None or self.closed:
                return
            thread = threading.Thread(target=self._serve, name="rankdeck", daemon=True)
            thread.start()
            self.thread = thread
        atexit.register(self._finish)

    def _serve(self):
        stream, pause = None, _PERIOD
        while True:
            closed, lines = self.closed, []
            try:
                if stream is None:
                    stream = self._connect()
                self._due()
                lines = self._take()
                if lines:
                    stream.sendall(b"".join(lines))
                self._read_refusals(stream)
                pause = _PERIOD
            except OSError:
                # Lines that the agent may or may not have read are not sent again: counters are sent again anyway, and an
                # evaluation must not count twice.
                self.lost += len(lines)
                if stream is not None:
                    stream.close()
                stream, pause = None, min(2 * pause, 4.0)
            if closed:
                return
            self.wake.wait(pause)
            self.wake.clear()

    def _connect(self):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(_CONNECT)
            stream.connect(self.path)
            _check_peer(stream)
            stream.settimeout(_SEND)
            stream.sendall(_line({"kind": "hello", "rank": self.rank, "generation": self.generation}))
            if not self.joined:
                fields = {"world_size": self.world_size, "backend": _backend(), "device": self.device}
                stream.sendall(_line({"kind": "joined", **fields}))
            self.joined = True
        except BaseException:
            stream.close()
            raise
        return stream

    def _take(self):
        """The lines that wait, reports first: evaluations and checkpoints follow what they are made from."""
        with self.lock:
            events, self.waiting, self.waiting_bytes = self.waiting, collections.deque(), 0
            counters, self.counters = self.counters, None
            (total, count, low, high), self.returns = self.returns, _NONE if counters else self.returns
            scalars, self.scalars = self.scalars, {}
            not_finite, self.not_finite = self.not_finite, {}
        lines = []
        if counters:
            returns = {"sum": total, "count": count, "min": low, "max": high}
            lines.append(_line({"kind": "counters", "sum": True, "returns": returns, **counters}))
        if scalars or not_finite:
            at = {"train_iter": self.latest["train_iter"], "env_step": self._step(None)}
            line = _line({"kind": "scalars", "values": scalars, "not_finite": not_finite, **at})
            if len(line) > _LINE:
                self.lost += 1
            else:
                lines.append(line)
        return lines + list(events)

    def _read_refusals(self, stream):
        """Prints the agent's rejections to stderr, which is the rank's log."""
        stream.settimeout(0.0)
        try:
            reply = stream.recv(65536)
        except BlockingIOError:
            return
        finally:
            stream.settimeout(_SEND)
        if not reply:
            raise ConnectionError("closed by the agent")
        for line in reply.splitlines():
            try:
                self._print("event refused: %s" % json.loads(line)["reason"])
            except (ValueError, TypeError, KeyError):
                pass

    def _finish(self):
        """Sends the last events when the program ends."""
        if not self.is_active():
            return
        self.closed = True
        self.wake.set()
        self.thread.join(_LAST)
        with self.lock:
            lost = self.lost + len(self.waiting)
        if lost:
            self._print("%d events lost" % lost)

    def _print(self, text):
        self.messages += 1
        if self.messages <= _MESSAGES and sys.stderr is not None:
            more = " (more of these are not shown)" if self.messages == _MESSAGES else ""
            sys.stderr.write("rankdeck: %s%s\n" % (text, more))


# Sum, count, minimum and maximum of no returns.
_NONE = (0.0, 0, 0.0, 0.0)


def _check_peer(stream):
    """Accepts only an agent of this user or of root."""
    _, uid, _ = struct.unpack("iII", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"the socket belongs to user {uid}")


def _line(event):
    return (json.dumps(event, allow_nan=False) + "\n").encode()


def _numbers(values):
    """Floats of a number, a sequence or an array."""
    try:
        return [float(value) for value in values]
    except TypeError:
        return [float(values)]


def _backend():
    """The backend of PyTorch's process group, where there is one."""
    try:
        group = sys.modules["torch.distributed"]
        return str(group.get_backend()) if group.is_initialized() else "none"
    except Exception:
        return "none"


class _Pace:
    """Limits how many of one name are made and sent (CLIENT-5)."""

    def __init__(self, burst, now):
        self.burst, self.event = burst, None
        self.makes = self.sends = float(burst)
        self.made = self.sent = now

    def may_make(self, now):
        self.makes = min(self.burst, self.makes + 4 * (now - self.made))
        self.made = now
        if self.makes < 1:
            return False
        self.makes -= 1
        return True

    def may_send(self, now):
        self.sends = min(self.burst, self.sends + max(0.0, now - self.sent))
        self.sent = max(self.sent, now)
        if self.sends < 1:
            return False
        self.sends -= 1
        return True


def _array(values):
    """A NumPy array, if NumPy is loaded and converts the value."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(values, "__array__"):
        return None, None
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return numpy, numpy.asarray(values)


def _flat(values):
    """Floats of numbers, sequences and arrays, however deep."""
    if isinstance(values, (int, float)):
        return [float(values)]
    if hasattr(values, "tolist"):
        values = values.tolist()
        if not isinstance(values, list):
            return [float(values)]
    return [number for value in values for number in _flat(value)]


def _is_pair(values):
    if not isinstance(values, tuple) or len(values) != 2:
        return False
    return all(hasattr(part, "__len__") for part in values) and abs(len(values[0]) - len(values[1])) == 1


def _bins(values):
    """The edges and counts of at most 64 bins."""
    if _is_pair(values):
        edges, counts = sorted((_flat(part) for part in values), key=len, reverse=True)
        if not all(map(math.isfinite, edges + counts)) or any(a >= b for a, b in zip(edges, edges[1:])):
            raise ValueError("edges must increase, and all numbers must be finite")
        return _fewer(edges, counts)
    numpy, array = _array(values)
    if array is not None:
        array = array.astype(float).ravel()
        array = array[numpy.isfinite(array)]
        low, high = (float(array.min()), float(array.max())) if array.size else (1.0, 0.0)
        whole = bool(array.size) and high - low < _BINS and bool((array == numpy.rint(array)).all())
    else:
        array = [value for value in _flat(values) if math.isfinite(value)]
        low, high = (min(array), max(array)) if array else (1.0, 0.0)
        whole = high - low < _BINS and all(value == int(value) for value in array)
    if low > high:
        raise ValueError("no value is a finite number")
    if whole and abs(low) < 1e15:
        # A bin for each number.
        edges = [low - 0.5 + i for i in range(int(high - low) + 2)]
    else:
        half = 0.0 if high > low else abs(low) * 0.05 or 0.5
        low, high = low - half, high + half
        edges = [low + (high - low) * (i / _BINS) for i in range(_BINS)] + [high]
        if any(a >= b for a, b in zip(edges, edges[1:])):
            edges = [low, high]
    if numpy is not None:
        counts = numpy.histogram(array, bins=edges)[0].tolist()
    else:
        counts, scale, last = [0] * (len(edges) - 1), (len(edges) - 1) / (edges[-1] - edges[0]), len(edges) - 2
        for value in array:
            counts[min(last, int((value - edges[0]) * scale))] += 1
    short = [_short(edge) for edge in edges]
    return {"edges": short if all(a < b for a, b in zip(short, short[1:])) else edges, "counts": counts}


def _fewer(edges, counts):
    """Merges bins to the number that the agent accepts; a bin that spans two is split by its share."""
    if len(counts) > _BINS:
        low, high = edges[0], edges[-1]
        wide, few = (high - low) / _BINS, [0.0] * _BINS
        for left, right, count in zip(edges, edges[1:], counts):
            first, last = (min(_BINS - 1, int((at - low) / wide)) for at in (left, right))
            for at in range(first, last + 1):
                shared = min(right, low + (at + 1) * wide) - max(left, low + at * wide)
                few[at] += count * (1.0 if first == last else max(0.0, shared) / (right - left))
        edges, counts = [low + wide * i for i in range(_BINS)] + [high], few
    return {"edges": edges, "counts": counts}


def _short(number):
    """Rounds numbers where that hardly changes them."""
    return float("%.9g" % number)


def _picture(picture):
    if isinstance(picture, (str, os.PathLike)):
        with open(picture, "rb") as file:
            picture = file.read(_PICTURE + 1)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        file = bytes(picture)
        if not file.startswith((b"\x89PNG\r\n\x1a\n", b"GIF8")):
            raise ValueError("expected a PNG or GIF, or rows of numbers")
        if len(file) > _PICTURE:
            raise ValueError("the image exceeds %d bytes" % _PICTURE)
    else:
        rows, channels = _rows(picture)
        while True:
            wide = len(rows[0]) // channels
            file = b"" if wide * len(rows) > _PIXELS or max(wide, len(rows)) > _SIDE else _png(rows, channels)
            if 0 < len(file) <= _PICTURE:
                break
            rows = [b"".join(row[i : i + channels] for i in range(0, len(row), 2 * channels)) for row in rows[::2]]
    return {"data": base64.b64encode(file).decode()}


def _rows(picture):
    """The rows of an image as bytes, and the number of bytes per pixel."""
    numpy, array = _array(picture)
    if array is not None:
        if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f" and array.size and 0 <= array.min() and array.max() <= 1:
            array = array * 255.0
        if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
            raise ValueError("expected height x width, optionally with 1, 3 or 4 channels")
        array = numpy.nan_to_num(array).clip(0, 255).astype("uint8")
        channels = 1 if array.ndim == 2 else array.shape[2]
        return [row.tobytes() for row in array], channels
    rows = [list(row) for row in picture]
    pixel = rows[0][0] if rows and rows[0] else None
    channels = 1 if isinstance(pixel, (int, float)) else len(pixel or ())
    numbers = [[_byte(part) for part in _flat(row)] for row in rows]
    wide = len(rows[0]) * channels if rows else 0
    if channels not in (1, 3, 4) or any(len(row) != wide for row in numbers):
        raise ValueError("expected rows of equal length, each pixel a number or 1, 3 or 4 numbers")
    return [bytes(row) for row in numbers], channels


def _byte(number):
    return int(min(255.0, max(0.0, number)))


def _png(rows, channels):
    """PNG with 8 bits for each channel."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    colours = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", len(rows[0]) // channels, len(rows), 8, colours, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _guarded(function, *arguments):
    """CLIENT-1"""
    try:
        return function(*arguments)
    except Exception as error:
        try:
            _client.lost += 1
            _client._print("%s: %s: %s" % (function.__name__, type(error).__name__, error))
        except Exception:
            pass
        return None


_client = _Client(os.environ)
