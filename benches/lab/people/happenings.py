"""What happens to a script at one step: things that take long and are well, and things that never end.

`LAB_FAULT=NAME@RANK:STEP` says what, to which rank (`all`: to every one) and when; with `STEP+EVERY` it happens again
and again, and of several names joined by `,` they take turns. `LAB_BESIDE` selects what runs next to every rank: `tracker` (a
process that computes and writes, as trackers do), `writer` (a thread that does) or `workers` (two processes that answer). Nothing here knows
of rankdeck.
"""
import asyncio, concurrent.futures, fcntl, http.server, multiprocessing, os, queue, re, socket, socketserver, subprocess, sys, tempfile, threading, time, urllib.request

LOCK, LONG = threading.Lock(), float(os.environ.get("LAB_SECONDS", "40"))
TRACKER = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    while os.getppid() == int(sys.argv[2]):
        until = time.time() + 0.03
        while time.time() < until:
            pass
        print("loss", time.time(), file=file, flush=True)
        time.sleep(0.25)
"""


def beside():
    """A tracker process or a writer thread, from the beginning of the script on."""
    path = os.path.join(tempfile.mkdtemp(prefix="lab"), "events")
    if os.environ.get("LAB_BESIDE") == "tracker":
        subprocess.Popen([sys.executable, "-c", TRACKER, path, str(os.getpid())])

    def write():
        with open(path, "w") as file:
            while True:
                until = time.time() + 0.02
                while time.time() < until:
                    pass
                print("loss", time.time(), file=file, flush=True)
                time.sleep(0.25)

    if os.environ.get("LAB_BESIDE") == "writer":
        threading.Thread(target=write, daemon=True).start()
    if os.environ.get("LAB_BESIDE") == "workers":
        pipes, fork = [multiprocessing.Pipe() for _ in range(2)], multiprocessing.get_context("fork")
        # Every worker inherits both ends of every pipe, as in many scripts.
        WORKERS.extend((fork.Process(target=echo, args=(theirs,), daemon=True), ours) for ours, theirs in pipes)
        for worker, _ in WORKERS:
            worker.start()


WORKERS = []


def echo(pipe):
    while True:
        pipe.send(pipe.recv())


BEGUN, LATER = time.monotonic(), 0


def happens(step, rank):
    """Called at every step, at the same place by all ranks. LAB_PAST: seconds of training before it."""
    if time.monotonic() - BEGUN < float(os.environ.get("LAB_PAST", "0")):
        return
    global LATER
    LATER = LATER or max(step, 1) - 1 if "LAB_PAST" in os.environ else 0
    step -= LATER
    names, _, target = os.environ.get("LAB_FAULT", "").partition("@")
    who, _, when = target.partition(":")
    at, _, every = when.partition("+")
    past = step - int(at or 0)
    due = past == 0 or every and past > 0 and past % int(every) == 0
    name = names.split(",")[past // int(every) % len(names.split(",")) if every and past > 0 else 0]
    if name and due and who in ("all", str(rank)):
        print(f"inject: {name} strikes in iteration 0 at {time.time():.3f}", file=sys.stderr, flush=True)
        globals()[name]()


def serve(handler):
    """An address at which a thread of this process answers; for what is somewhere else in real runs."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address


# What takes long and is well.

def evaluates():
    """Episodes in a simulator elsewhere, which answers when it likes."""
    class Simulator(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline():
                time.sleep(1.2)
                self.wfile.write(b"1.0\n")
    until, episode = time.time() + LONG, 0
    with socket.create_connection(serve(Simulator)) as simulator:
        answers = simulator.makefile("rw")
        while time.time() < until:
            for _ in range(5):
                answers.write("step\n")
                answers.flush()
                answers.readline()
            episode += 1
            print(f"evaluation: episode {episode}", flush=True)


def answers():
    """The same simulator, asked in silence: nothing is printed and no file grows."""
    class Simulator(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline():
                time.sleep(1.2)
                self.wfile.write(b"1.0\n")
    until = time.time() + LONG
    with socket.create_connection(serve(Simulator)) as simulator:
        while time.time() < until:
            simulator.sendall(b"step\n")
            simulator.recv(64)


def datagrams():
    """A simulator that speaks UDP, as ROS and many games do: the kernel counts no bytes for it."""
    class Simulator(socketserver.DatagramRequestHandler):
        def handle(self):
            time.sleep(0.012)
            self.wfile.write(b"1.0")
    server = socketserver.UDPServer(("127.0.0.1", 0), Simulator)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    until = time.time() + LONG
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as simulator:
        simulator.connect(server.server_address)
        while time.time() < until:
            simulator.send(b"step")
            simulator.recv(64)
            sum(range(4000))


def uploads():
    """A model goes over a slow line in a thread of a library, while the main thread waits for that."""
    class Slow(socketserver.BaseRequestHandler):
        def handle(self):
            while self.request.recv(1 << 16):
                time.sleep(0.15)
    def send():
        until = time.time() + LONG
        with socket.create_connection(serve(Slow)) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            while time.time() < until:
                line.sendall(bytes(1 << 16))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(send).result()


def appears():
    """Waits for a file of another process, polling every two seconds."""
    until, path = time.time() + LONG, os.path.join(tempfile.mkdtemp(prefix="lab"), "ready")
    while not os.path.exists(path):
        time.sleep(2)
        if time.time() > until:
            open(path, "w").close()


def prints():
    for episode in range(int(LONG / 3)):
        time.sleep(3)
        print(f"evaluation: episode {episode}", flush=True)


def saves():
    with tempfile.TemporaryFile() as file:
        for _ in range(int(LONG / 2)):
            file.write(os.urandom(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(1.9)


def compiles():
    subprocess.run([sys.executable, "-c", f"import time\nuntil = time.time() + {LONG}\nwhile time.time() < until: pass"], check=True)


def downloads():
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            for _ in range(int(LONG)):
                self.wfile.write(b"x" * 2000)
                time.sleep(1)

        def log_message(self, *_):
            pass
    host, port = serve(Slow)
    urllib.request.urlopen(f"http://{host}:{port}/data").read()


def prepares():
    def shard(_):
        until = time.time() + LONG
        while time.time() < until:
            sum(range(10000))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(shard, range(2)))


def sleeps():
    time.sleep(LONG)


def computes():
    until = time.time() + LONG
    while time.time() < until:
        sum(range(10000))


# What never ends.

def lock():
    with LOCK:
        with LOCK:
            pass


def polled():
    waiting = queue.Queue()
    while True:
        try:
            waiting.get(timeout=0.5)
        except queue.Empty:
            continue


def server():
    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            time.sleep(10000)
    socket.create_connection(serve(Silent)).recv(1)


def flock():
    with open(os.environ["LAB_LOCK"], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def fifo():
    path = os.path.join(tempfile.mkdtemp(), "orders")
    os.mkfifo(path)
    open(path)


def child():
    subprocess.Popen(["sleep", "1000"]).wait()


def worker_dies():
    """A sibling holds the other end, too, so this program gets no notice of the death."""
    worker, pipe = WORKERS[0]
    worker.kill()
    pipe.recv()


def worker_reaped():
    """The same, and the program has waited for its worker."""
    worker, pipe = WORKERS[0]
    worker.kill()
    worker.join()
    pipe.recv()


def dials():
    """Nobody listens there, and nobody will."""
    def call(host, port):
        while True:
            try:
                return socket.create_connection((host, port))
            except OSError:
                time.sleep(0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    call(*address)


def awaits_file():
    """As of a flag or of a lock whose holder has died."""
    def ready(path):
        while not os.path.exists(path):
            time.sleep(0.5)
    ready("/nowhere/ready.flag")


def collects():
    """A thread waits for a simulator, and the program for the thread."""
    thread = threading.Thread(target=server, name="collector")
    thread.start()
    thread.join()


def judges():
    """A coroutine waits for an answer that never comes."""
    async def verdict():
        await asyncio.Event().wait()
    asyncio.run(verdict())


def regex():
    re.match(r"(a+)+$", "a" * 64 + "b")


# What ends the program.

def raises():
    raise KeyError("observation")


def noisy():
    """Warnings that have nothing to do with the end."""
    for line in ("cannot write the cache: [Errno 28] No space left on device", "bind: Address already in use", "Connection reset by peer"):
        print(f"warning: {line}", file=sys.stderr, flush=True)
    raises()


def leaves():
    os._exit(0)


def remains():
    """A thread that is never joined; training continues."""
    threading.Thread(target=threading.Event().wait).start()
