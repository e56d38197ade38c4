

# Histograms and pictures. `rankdeck client` puts this below the rest of the module.

import base64
import struct
import zlib

# Names of both kinds; how many of a name are sent at once.
_LOGGED, _BURST = 48, {"histogram": 8, "image": 4}
# Most bins, bytes and pixels, as the agent takes them.
_BINS, _PICTURE, _PIXELS, _SIDE = 64, 256 << 10, 4 << 20, 4096


def histogram(name, values, *, env_step=None, train_iter=None):
    """Tells how values are spread: a sequence of numbers or an array, or the pair `(edges, counts)`, in either order.

    Only rank 0's calls count. More than 64 bins become 64 of one width.
    """
    _guarded(_client.histogram, name, values, env_step, train_iter)


def image(name, picture, *, env_step=None, train_iter=None):
    """Tells a picture: the bytes of a PNG or GIF, a path to one, rows of numbers from 0 to 255, or an array.

    An array has height x width, or these and 1, 3 or 4 channels, first or last; numbers with a fraction that are all
    within 0 and 1 are shares of 255. Only rank 0's calls count. What takes more than 256 KiB is made smaller by
    leaving pixels out, or refused where it is a file.
    """
    _guarded(_client.image, name, picture, env_step, train_iter)


class _Pace:
    """How many of one name may be made, and sent (CLIENT-5)."""

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
    """An array of numpy's, where that is loaded and knows what is given."""
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
            raise ValueError("the edges must rise, and all numbers be finite")
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
    """As many bins as the agent takes; each gets its share of those that reach into it."""
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
    """With fewer digits, where that is nearly the same."""
    return float("%.9g" % number)


def _picture(picture):
    if isinstance(picture, (str, os.PathLike)):
        with open(picture, "rb") as file:
            picture = file.read(_PICTURE + 1)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        file = bytes(picture)
        if not file.startswith((b"\x89PNG\r\n\x1a\n", b"GIF8")):
            raise ValueError("a picture is PNG, GIF, or rows of numbers")
        if len(file) > _PICTURE:
            raise ValueError("the picture has more than %d bytes" % _PICTURE)
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
    """The rows of a picture as bytes, and how many stand for a pixel."""
    numpy, array = _array(picture)
    if array is not None:
        if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f" and array.size and 0 <= array.min() and array.max() <= 1:
            array = array * 255.0
        if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
            raise ValueError("a picture has height x width, or 1, 3 or 4 channels besides")
        array = numpy.nan_to_num(array).clip(0, 255).astype("uint8")
        channels = 1 if array.ndim == 2 else array.shape[2]
        return [row.tobytes() for row in array], channels
    rows = [list(row) for row in picture]
    pixel = rows[0][0] if rows and rows[0] else None
    channels = 1 if isinstance(pixel, (int, float)) else len(pixel or ())
    numbers = [[_byte(part) for part in _flat(row)] for row in rows]
    wide = len(rows[0]) * channels if rows else 0
    if channels not in (1, 3, 4) or any(len(row) != wide for row in numbers):
        raise ValueError("a picture is rows of one length, of numbers or of 1, 3 or 4 numbers for each pixel")
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
