"""A fake `rankdeck agent`: the markers, a daemon behind a unix socket, frames both ways.

It answers `attach` with a log line, `log_tail` lines of 64 KiB, a last line, and then a heartbeat four times a second, and
`ping` with `pong`. It ends when its working folder is removed.
"""
import hashlib, json, os, select, socket, struct, sys, threading, time


def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def frame(value):
    data = json.dumps(value).encode()
    return struct.pack(">I", len(data)) + data


def serve(client):
    lock = threading.Lock()

    def send(value):
        with lock:
            client.sendall(frame(value))

    def beat():
        try:
            while True:
                send({"kind": "pong", "sent_ms": 0})
                time.sleep(0.25)
        except OSError:
            pass

    data = b""
    try:
        while True:
            part = client.recv(65536)
            if not part:
                return
            data += part
            while len(data) >= 4 and len(data) >= 4 + struct.unpack(">I", data[:4])[0]:
                size = struct.unpack(">I", data[:4])[0]
                message, data = json.loads(data[4 : 4 + size]), data[4 + size :]
                if message["kind"] == "attach":
                    send({"kind": "log", "rank": 0, "first": 0, "lines": ["attached"]})
                    for number in range(message["log_tail"]):
                        send({"kind": "log", "rank": 1, "first": number, "lines": ["x" * 65536]})
                    send({"kind": "log", "rank": 1, "first": 64, "lines": ["end"]})
                    threading.Thread(target=beat, daemon=True).start()
                elif message["kind"] == "ping":
                    send({"kind": "pong", "sent_ms": message["sent_ms"]})
    except OSError:
        pass


def daemon(path, workdir):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    with open(workdir + "/agent.pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    listener.settimeout(0.5)
    while os.path.exists(workdir):
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        client.settimeout(None)
        threading.Thread(target=serve, args=(client,), daemon=True).start()
    os._exit(0)


def alive(path):
    try:
        probe = socket.socket(socket.AF_UNIX)
        probe.connect(path)
        probe.close()
        return True
    except OSError:
        return False


def note(workdir, text):
    with open(workdir + "/calls", "a") as file:
        file.write(text + "\n")


def start():
    workdir = os.path.abspath(option("--workdir"))
    if "refuse" in workdir:
        print("RANKDECK-AGENT " + json.dumps({"error": "no room for spool", "hint": "free some"}))
        sys.exit(1)
    os.makedirs(workdir, 0o700, exist_ok=True)
    note(workdir, " ".join(sys.argv[1:]))
    key = hashlib.sha256((option("--run") + option("--node-rank")).encode()).hexdigest()[:8]
    path = "%s/%s.sock" % (workdir, key)
    if not alive(path):
        if "--existing" in sys.argv:
            print("RANKDECK-AGENT " + json.dumps({"error": "no such run", "hint": "rankdeck ps"}))
            sys.exit(1)
        if os.path.exists(path):
            os.remove(path)
        daemon(path, workdir)
        while not os.path.exists(path):
            time.sleep(0.005)
    print("RANKDECK-AGENT " + json.dumps({"socket": path, "pid": 0, "build": "stand-in", "run_dir": workdir}))


def relay():
    path = option("--socket")
    note(os.path.dirname(path), "relay")
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    sys.stdout.write("RANKDECK-RELAY\n")
    sys.stdout.flush()
    while True:
        for ready in select.select([0, stream], [], [])[0]:
            data = os.read(0, 65536) if ready == 0 else stream.recv(65536)
            if not data:
                return
            if ready == 0:
                stream.sendall(data)
            else:
                while data:
                    data = data[os.write(1, data) :]


def main():
    what = sys.argv[2]
    if what == "probe":
        trainer = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "rankdeck-trainer")
        probe = {"hostname": "stand-in", "cpu_count": 2, "gpu_count": 0, "home": os.path.expanduser("~")}
        probe["trainer"] = trainer if os.path.exists(trainer) else None
        probe["libtorch"] = None
        print("RANKDECK-PROBE " + json.dumps(probe))
    elif what == "start":
        start()
    elif what == "relay":
        relay()
    elif what == "list":
        print("RANKDECK-LIST " + json.dumps(sys.argv[3:]))
    else:
        sys.exit("unknown command " + what)


main()
