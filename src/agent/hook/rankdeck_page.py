"""The status page of a Python rank, version 6 of src/proto/status_page.rs.

Owner: the rank's interpreter: `page` is the open one, and `None` before `init_process_group` and in children. Words are 64 bits wide, in the
machine's order; the one at `_LOCK` is odd while others are being written.
"""

import os

_PAGE_BYTES = 24576
_MASK = (1 << 64) - 1
_PRIME = 0x100000001B3
_RING, _RING_WORDS, _RING_START = 64, 15, 64
_GROUPS, _GROUP_WORDS, _GROUPS_START = 16, 8, 1024
_ITERATIONS, _ITERATION_WORDS, _ITERATIONS_START = 128, 5, 1152
_SITES, _SITE_TEXT, _SITES_START = 32, 56, 1792
_FINGERPRINTS, _FINGERPRINT_WORDS, _FINGERPRINTS_START = 64, 10, 2048
_BODY, _LOCK = 9, 8
_ARGUMENTS, _ADDRESS = 49, 88
_INPUT = _BODY + 26
INIT, RENDEZVOUS, LEARN, TEARDOWN = 0, 1, 3, 7
# In the head: who writes, and the counters of requests for a Flight Recorder dump and of answers.
_WRITER, REQUEST, ANSWER = 5, 6, 7

# Variables of launchers that number a rank or count ranks. Their order is that of `VARIABLES` in src/proto/status_page/layout.rs.
_RANKS = ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

page = None
# The process that is a rank of its own (HOOK-9), and the most of one rank that have a page.
inner = None
_INNER = 64
_reported = False
# Held for as long as this process writes the page.
_claim = None


def words_of(text, size):
    data = text.encode("ascii", "replace")[:size].ljust(size, b"\0")
    return [int.from_bytes(data[at:at + 8], "little") for at in range(0, size, 8)]


_NOWHERE = (None, None)
_UNKNOWN = 1 << 48
# A collective that C++ has issued: only its number is known.
_UNNAMED = words_of("collective", 16)


def contradicting():
    """Bits of the variables whose numbers differ from those that rankdeck has set."""
    bits, at = 0, 0
    for names, planned in ((_RANKS, "RANKDECK_RANK"), (_SIZES, "ROLE_WORLD_SIZE")):
        expected = os.environ.get(planned, "")
        for name in names:
            value = os.environ.get(name, "")
            if value.isdecimal() and expected.isdecimal() and int(value) != int(expected):
                bits |= 1 << at
            at += 1
    return bits


class Page:
    def __init__(self, path, rank, generation, phase):
        import mmap
        import struct
        import threading
        import time

        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # With its blocks: a store where a full disk has none would end the process (SIGBUS).
            os.posix_fallocate(fd, 0, _PAGE_BYTES)
            self.map = mmap.mmap(fd, _PAGE_BYTES)
        finally:
            os.close(fd)
        self.path = path
        self.words = memoryview(self.map).cast("Q")
        self.now = time.monotonic_ns
        self.ring_entry = struct.Struct("=15Q")
        self.group_entry = struct.Struct("=8Q")
        self.fingerprint_entry = struct.Struct("=6Q2d2Q")
        self.fingerprints = self.begun = 0
        self.lock = threading.Lock()
        self.entered = self.left = self.wait = self.updates = self.elements = self.input = 0
        self.groups = {}
        self.sites = {}
        self.open = None
        self.fr = None
        words = self.words
        words[0] = 0
        for at in range(1, _PAGE_BYTES // 8):
            words[at] = 0
        now = self.now()
        words[_BODY], words[_BODY + 1], words[_BODY + 3], words[_BODY + 13] = phase, now, now, now
        words[_GROUPS_START:_GROUPS_START + 2] = memoryview(self.group_entry.pack(*words_of("world", 16), *[0] * 6)).cast("Q")[:2]
        words[1], words[2], words[3], words[4], words[_WRITER] = 6, rank, generation, os.getpid(), 1
        words[0] = int.from_bytes(b"rankdeck", "little")

    def phase(self, phase):
        with self.lock:
            now = self.now()
            self.words[_LOCK] |= 1
            self.words[_BODY] = phase
            self.words[_BODY + 1] = self.words[_BODY + 3] = now
            self.words[_LOCK] += 1

    def begins(self, rank, size, address, port, backend, frame):
        """The process group begins to form; -1 for an unknown rank or size, 0 for an unknown port, "" for an unknown backend."""
        data = address.encode("utf-8", "replace")[-_ADDRESS:].ljust(_ADDRESS, b"\0")
        known = [number & 0xFFFFFFFF for number in (rank, size)]
        port = port if 0 < port < 65536 else 0
        backend = int.from_bytes(backend.encode("ascii", "replace")[:6], "little")
        # They describe the rank that has started one of its own.
        variables = 0 if inner == os.getpid() else contradicting()
        at = _ARGUMENTS + 4
        with self.lock:
            self.begun += 1
            now = self.now()
            site = self._site(frame) if frame is not None else 0
            self.words[_LOCK] |= 1
            head = (self.begun | variables << 32, known[0] << 32 | known[1], port | backend << 16, site)
            for offset, word in enumerate(head):
                self.words[_ARGUMENTS + offset] = word
            self.map[at * 8:at * 8 + _ADDRESS] = data
            self.words[_BODY] = RENDEZVOUS
            self.words[_BODY + 1] = self.words[_BODY + 3] = now
            self.words[_LOCK] += 1

    def group(self, handle, name, size, sequence):
        """[slot, entered, left, chain, last, words of the name, size, difference to the library's sequence number]"""
        known = self.groups.get(name)
        if known is None:
            slot = 0 if handle is None else len(self.groups) + (0 if "world" in self.groups else 1)
            known = [slot, 0, 0, 0, 0, words_of(name, 16), size, sequence() if sequence else 0, sequence]
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
            # Of a library the part below its installation: there is room for the end of a path only.
            text = "%s:%d" % (code.co_filename.split("site-packages/")[-1].split("dist-packages/")[-1], line)
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
        # Of calls of C++ and of messages between two ranks the size is not known: they may carry all weights.
        self.elements += _UNKNOWN if op in (0, 10) else count
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

    def _reenter(self, group, entry, now):
        """Waits for a call that was entered and left before: the same number of its group, the latest of all. What `_releave` needs."""
        self.entered += 1
        again = [self.entered, *entry[1:7], now, 0, *entry[9:13], self.updates, entry[14]]
        left = group[2]
        group[2], group[4] = min(left, entry[11] - 1), self.entered
        words = self.words
        words[_LOCK] |= 1
        words[_BODY + 3] = now
        words[_BODY + 9] = self.entered
        self.ring_entry.pack_into(self.map, (_RING_START + self.entered % _RING * _RING_WORDS) * 8, *again)
        self._write_group(group)
        words[_LOCK] += 1
        return group, again, left

    def _releave(self, token, now):
        group, again, left = token
        group[2] = max(group[2], left)
        self._leave(group, again, now)

    def catch_up(self, group, completed=None):
        """Counts what C++ has issued in a group since the last call; to be called with the lock."""
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
            entry = self._enter(group, 0, _UNNAMED, 0, 0, 0, 0, None, now)
            group[9:] = [entry]
        if len(group) > 9 and group[9] is not None:
            if completed is None or completed - group[7] >= group[9][11]:
                self._leave(group, group[9], now)
                group[9] = None

    def settle(self, group):
        """Whatever numbers the library has given away inside a call of Python were not for collectives; to be called with the lock."""
        if group[8] is not None:
            group[7] = group[8]() - group[1]

    def exchanged(self):
        """Elements of all collectives entered so far, and how many of these are of the group of all ranks; those of C++ included."""
        with self.lock:
            world = self.groups.get("world")
            if world is None:
                return self.elements, 0
            self.catch_up(world)
            return self.elements, world[1]

    def fingerprint(self, step, place, optimizer, shapes, lanes, total, scale, finite, synced, local):
        """The weights of an optimizer between one of its steps and the next; `place`: (collectives of all ranks, steps since the latest)."""
        with self.lock:
            at = (_FINGERPRINTS_START + self.fingerprints % _FINGERPRINTS * _FINGERPRINT_WORDS) * 8
            self.fingerprints += 1
            pairs = [lanes[lane] | lanes[lane + 1] << 32 for lane in range(0, 8, 2)]
            self.words[_LOCK] |= 1
            head = optimizer | finite << 16 | synced << 17 | local << 18 | shapes << 32
            self.fingerprint_entry.pack_into(self.map, at, step + 1, head, *pairs, total, scale, *place)
            self.words[_LOCK] += 1

    def waited(self, nanoseconds, kind, frame):
        """The training loop has waited for its input."""
        with self.lock:
            site = self._site(frame) if frame is not None else 0
            self.input += nanoseconds
            words = self.words
            words[_LOCK] |= 1
            words[_INPUT], words[_INPUT + 1], words[_INPUT + 2] = self.input, site, kind
            words[_LOCK] += 1

    def step(self):
        """An optimizer step ends: the iteration of a script without other reports."""
        with self.lock:
            world = self.groups.get("world")
            if world is not None:
                self.catch_up(world)
            called, chain = (world[1], world[3]) if world is not None else (0, 0)
            now = self.now()
            self.updates += 1
            words = self.words
            at = _ITERATIONS_START + self.updates % _ITERATIONS * _ITERATION_WORDS
            words[_LOCK] |= 1
            words[_BODY + 3] = now
            words[_BODY + 4] = words[_BODY + 8] = self.updates
            for offset, word in enumerate((self.updates, called, chain, now, self.wait)):
                words[at + offset] = word
            words[_LOCK] += 1


def open_page(phase=RENDEZVOUS):
    global page, _reported
    if page is not None:
        return
    try:
        owner = os.environ.get("RANKDECK_HOOK_PID")
        if owner and owner != str(os.getpid()) or not _claims():
            return
        page = Page(os.environ["RANKDECK_STATUS_PAGE"], int(os.environ["RANKDECK_RANK"]), int(os.environ.get("RANKDECK_GENERATION", "0")), phase)
        os.environ["RANKDECK_HOOK_PID"] = str(os.getpid())
        os.register_at_fork(after_in_child=_forget)
    except Exception as error:
        page = None
        if not _reported:
            _reported = True
            _print("rankdeck: no status page: %s; verdicts about this rank are limited\n" % error)


def open_inner(rank):
    """HOOK-9: the page of a rank of its own, next to that of the rank that has started it."""
    global page
    if page is not None or not 0 <= rank < _INNER:
        return
    path = "%s.inner%d" % (os.environ["RANKDECK_STATUS_PAGE"], rank)
    page = Page(path, rank, int(os.environ.get("RANKDECK_GENERATION", "0")), RENDEZVOUS)
    os.register_at_fork(after_in_child=_forget)


def _claims():
    """Only one process at a time writes the page of a rank. The name of an abstract socket is its own until it ends, on any file system."""
    global _claim
    import errno
    import socket
    import zlib

    if _claim is not None:
        return True
    path = os.path.abspath(os.environ["RANKDECK_STATUS_PAGE"])
    name = "\0rankdeck-page-%s-%08x-%s" % (path[-40:], zlib.crc32(path.encode("utf-8", "replace")), os.environ.get("RANKDECK_GENERATION", "0"))
    try:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(name.encode("utf-8", "replace")[:100])
        except OSError:
            claim.close()
            raise
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    _claim = claim
    return True


def is_below():
    """This process is not the first interpreter of its rank."""
    return os.environ.get("RANKDECK_FIRST_PYTHON") not in (None, str(os.getpid()))


def is_beside():
    """Another process writes the page of its rank, or none may."""
    return page is None and _claim is None and is_below()


def _planned():
    """The number of ranks in the plan, from the environment of the rank's first interpreter: launchers overwrite it for their children."""
    try:
        with open("/proc/%s/environ" % os.environ["RANKDECK_FIRST_PYTHON"], "rb") as file:
            given = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        return int(given.get(b"ROLE_WORLD_SIZE", b"1"))
    except (OSError, ValueError):
        return int(os.environ.get("ROLE_WORLD_SIZE") or 1)


def is_inner(size):
    """HOOK-9: a process group of `size` ranks begins in a program below the rank's own, and it is not that of the plan."""
    return page is None and is_below() and size > 0 and size != _planned()


# The hook that counts steps before there is a process group, once `watch_steps` was called.
_alone = None


def watch_steps(register):
    """Counts the steps of optimizers until `joins`."""
    global _alone
    tried = False

    def stepped(*_):
        nonlocal tried
        try:
            if page is None and not tried:
                tried = True
                open_page(INIT)
            if page is not None:
                page.step()
        except Exception:
            pass

    _alone = register(stepped)


def joins():
    """A process group begins to form: its own hook counts from here on."""
    global _alone
    if _alone is not None:
        _alone.remove()
        _alone = None


def _print(text):
    import sys

    try:
        sys.stderr.write(text)
    except Exception:
        pass


def _forget():
    global page, _claim
    page = None
    if _claim is not None:
        # The child has a copy of it.
        _claim.close()
        _claim = None
