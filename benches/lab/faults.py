"""What a rank of `script.py` may do instead of its work: block on something with a name, hold the interpreter lock in C code, or end."""
import errno, fcntl, os, re, select, signal, socket, sqlite3, subprocess, sys, tempfile, time

# Warnings that have nothing to do with how a program ends.
NOISE = ("warning: cannot write the cache: [Errno 28] No space left on device (ENOSPC)", "bind: Address already in use (EADDRINUSE)",
         "simulator: Connection reset by peer, reconnecting", "tracker: socket timed out, peer gone")


def fifo(mode):
    path = os.path.join(tempfile.mkdtemp(), "orders")
    os.mkfifo(path)
    open(path, mode)


def held(name, imports, hold):
    """A file that a program locks which is not of this run: the mark of the run is taken out of its environment."""
    path = os.path.join(tempfile.mkdtemp(), name)
    code = f"import {imports}, os, sys, time\nos.setsid()\npath = {path!r}\n{hold}\nprint('held', flush=True)\ntime.sleep(120)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
    holder.stdout.readline()
    return path


def locked(lock):
    path = held("index.lock", "fcntl", f"f = open(path, 'w')\nfcntl.{lock}(f, fcntl.LOCK_EX)")
    getattr(fcntl, lock)(open(path, "w"), fcntl.LOCK_EX)


def tried():
    """A lock file, as programs take it that do not want to wait in the kernel."""
    with open(held("index.lock", "fcntl", "f = open(path, 'w')\nfcntl.flock(f, fcntl.LOCK_EX)"), "a") as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.25)


def database():
    path = held("study.db", "sqlite3", "c = sqlite3.connect(path, isolation_level=None)\nc.execute('BEGIN EXCLUSIVE')")
    sqlite3.connect(path, timeout=1000).execute("CREATE TABLE trials (value)")


def accept(family):
    listener = socket.socket(family)
    listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else os.path.join(tempfile.mkdtemp(), "orders"))
    listener.listen()
    listener.accept()


def child_server():
    """A simulator that this rank has started, at a path: it takes the order and never answers."""
    path = os.path.join(tempfile.mkdtemp(), "simulator")
    code = f"import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind({path!r})\ns.listen()\nprint('there', flush=True)\nc = s.accept()[0]\nc.recv(1)\ntime.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.readline()
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.send(b"x")
    client.recv(1)


def server(timeout):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    client.settimeout(timeout)
    client.recv(1)


def name_server():
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(("127.0.0.1", 53))
    waiting = select.poll()
    waiting.register(client, select.POLLIN)
    waiting.poll()


def stopped_reader():
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    reader.send_signal(signal.SIGSTOP)
    while True:
        os.write(reader.stdin.fileno(), b"x" * 65536)


class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000)


def loader():
    from torch.utils.data import DataLoader

    next(iter(DataLoader(Rows(), num_workers=2)))


def noisy(end):
    for line in NOISE:
        print(line, file=sys.stderr, flush=True)
    end()


def fails(error):
    raise error


def reset():
    """A simulator that breaks its connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    other.close()
    client.recv(1)


def taken_port():
    first = socket.create_server(("127.0.0.1", 0))
    socket.create_server(first.getsockname())


def out_of_memory():
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


FAULTS = {
    "fifo-read": lambda: fifo("r"),
    "fifo-write": lambda: fifo("w"),
    "flock": lambda: locked("flock"),
    "lockf": lambda: locked("lockf"),
    "tried": tried,
    "database": database,
    "accept": lambda: accept(socket.AF_INET),
    "accept-path": lambda: accept(socket.AF_UNIX),
    "child-server": child_server,
    "server": lambda: server(None),
    "server-poll": lambda: server(1000.0),
    "name-server": name_server,
    "child": lambda: subprocess.Popen(["sleep", "1000"]).wait(),
    "child-output": lambda: subprocess.run(["sleep", "1000"], stdout=subprocess.PIPE),
    "stopped-reader": stopped_reader,
    "loader": loader,
    "regex": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "power": lambda: 7 ** (1 << 30),
    "noise-raise": lambda: noisy(lambda: {}["observation"]),
    "noise-segv": lambda: noisy(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "noise-exit": lambda: noisy(lambda: sys.exit(3)),
    "reset": reset,
    "full-disk": lambda: fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "latest.pt")),
    "port": taken_port,
    "out-of-memory": out_of_memory,
}
