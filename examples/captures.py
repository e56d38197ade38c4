#!/usr/bin/env python3
"""Every page of the console from a real run, as text and as SVG: `make captures`, or

    python3 examples/captures.py FOLDER [--binary target/release/rankdeck] [--sizes 80x24,120x40,200x60] [--themes dark,light,mono] [--pages PART]

CartPole is trained by two ranks on this machine in a folder that goes away. The console runs in a terminal of its own (a tmux server of
its own), is sent keys as a user sends them, and what it shows is written to FOLDER/SIZE-THEME-PAGE.txt and .svg.
"""
import argparse, html, os, pathlib, re, shutil, signal, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Until a page shows what it is about.
DEADLINE = 60
GROUNDS = {"dark": ("#16181d", "#d7dae0"), "light": ("#fafafa", "#24292f"), "mono": ("#16181d", "#d7dae0")}
DARK = ["#16181d", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf", "#5c6370", "#ff7a85", "#b5e890", "#ffd68a", "#7cc0ff", "#dc8df2", "#6fd3df", "#ffffff"]
LIGHT = ["#24292f", "#cf222e", "#116329", "#9a6700", "#0969da", "#8250df", "#1b7c83", "#6e7781", "#57606a", "#a40e26", "#1a7f37", "#bf8700", "#218bff", "#a475f9", "#3192aa", "#fafafa"]
WIDE, TALL, SIZE = 8.4, 17, 14

# Pages of the live run: name, keys, expected text, keys to leave it.
RUNNING = [
    ("overview", ["1"], "RANK", []),
    ("ranks", ["1", "z"], "RANK", ["z"]),
    ("charts", ["2"], "charts", []),
    ("evals", ["3"], "eval", []),
    ("logs", ["4"], "eval after", []),
    ("hosts", ["5"], "node1", []),
    ("events", ["6"], "checkpoint", []),
    ("inspect", ["1", "Enter"], "rank 0", ["Escape"]),
    ("help", ["?"], "type to filter", ["Escape"]),
    ("palette", [":"], "show rank details", ["Escape"]),
    ("past", ["<"], "live", ["Escape"]),
    ("restart", ["R"], "checkpoint", ["Escape"]),
    ("quit", ["q"], "detach", ["Escape"]),
]
OVER = [("end", ["7"], "last minute", []), ("over", ["1"], "run has ended", [])]
# A rank that is suspended by a signal, a host that sends no messages, and a run whose rank was killed.
FROZEN = [("frozen", ["1"], "frozen", []), ("frozen-why", ["d"], "process", ["Escape"]), ("frozen-charts", ["2"], "charts", []), ("frozen-hosts", ["5"], "node1", [])]
LOST = [("lost", ["1"], "lost", []), ("lost-why", ["d"], "node1", ["Escape"]), ("lost-hosts", ["5"], "node1", []), ("lost-events", ["6"], "lost", [])]
KILLED = [("killed-end", ["7"], "last minute", []), ("killed-ranks", ["1", "z"], "RANK", ["z"]), ("killed-charts", ["2"], "charts", [])]
HOME = [
    ("home", ["1"], "cartpole", []),
    ("experiments", ["2"], "cartpole", []),
    ("fleet", ["3"], "node1", []),
    ("compare", ["1", "Space", "j", "Space", "c"], "charts", ["1", "Escape"]),
    ("home-help", ["?"], "type to filter", ["Escape"]),
]


class Terminal:
    """A tmux server with one window."""

    made = 0

    def __init__(self, folder, size, theme, command):
        # A server that ends still holds its socket for a while.
        Terminal.made += 1
        self.socket = str(pathlib.Path(folder) / f"tmux-{Terminal.made}")
        self.columns, self.rows = map(int, size.split("x"))
        environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], "HOME": str(folder)}
        if theme == "mono":
            environment["NO_COLOR"] = "1"
        assigned = [f"{name}={value}" for name, value in environment.items()]
        size = ["-x", str(self.columns), "-y", str(self.rows)]
        inner = ["env", "-u", "TMUX", "-u", "NO_COLOR", *assigned, *command]
        subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *inner], check=True)
        self.tmux("set-option", "-g", "status", "off")
        self.tmux("resize-window", *size)

    def tmux(self, *words):
        return subprocess.run(["tmux", "-S", self.socket, *words], capture_output=True, text=True).stdout

    def keys(self, keys):
        for key in keys:
            self.tmux("send-keys", key)
            time.sleep(0.15)

    def text(self, colours=False):
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait(self, words):
        """Until the words are there and a frame is whole."""
        until = time.time() + DEADLINE
        while time.time() < until:
            before = self.text()
            time.sleep(0.25)
            if words.lower() in before.lower() and self.text().splitlines()[:1] == before.splitlines()[:1]:
                return True
        return False

    def end(self):
        self.tmux("kill-server")


def colour(words, palette):
    """The color that an SGR's parameters name, and the number of parameters."""
    kind = words[1] if len(words) > 1 else ""
    if kind == "5" and len(words) > 2:
        index = int(words[2])
        if index < 16:
            return palette[index], 3
        if index < 232:
            part = lambda value: 0 if value == 0 else 55 + 40 * value
            index -= 16
            return "#%02x%02x%02x" % (part(index // 36), part(index // 6 % 6), part(index % 6)), 3
        return "#%02x%02x%02x" % ((8 + 10 * (index - 232),) * 3), 3
    if kind == "2" and len(words) > 4:
        return "#%02x%02x%02x" % tuple(int(word) for word in words[2:5]), 5
    return None, len(words)


def cells(line, palette):
    """Each character of a line with its style."""
    look = {}
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b["):
            for sign in part:
                yield sign, dict(look)
            continue
        words = part[2:-1].split(";")
        while words:
            word = int(words[0] or 0)
            taken = 1
            if word == 0:
                look = {}
            elif word in (1, 2, 4, 7):
                look[{1: "bold", 2: "faint", 4: "line", 7: "reverse"}[word]] = True
            elif word in (38, 48):
                found, taken = colour(words, palette)
                look["front" if word == 38 else "back"] = found
            elif 30 <= word <= 37 or 90 <= word <= 97:
                look["front"] = palette[word - 30 if word < 40 else word - 82]
            elif 40 <= word <= 47 or 100 <= word <= 107:
                look["back"] = palette[word - 40 if word < 50 else word - 92]
            elif word in (39, 49):
                look.pop("front" if word == 39 else "back", None)
            words = words[taken:]


def svg(text, size, theme):
    """The screen as a picture; dots of braille are drawn, since few fonts have them at the right width."""
    ground, front = GROUNDS[theme]
    palette = LIGHT if theme == "light" else DARK
    columns, rows = map(int, size.split("x"))
    width, height = columns * WIDE + 16, rows * TALL + 16
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" font-family="\'DejaVu Sans Mono\',monospace" font-size="{SIZE}">', f'<rect width="100%" height="100%" fill="{ground}"/>']
    for row, line in enumerate(text.splitlines()[:rows]):
        y = 8 + row * TALL
        for column, (sign, look) in enumerate(cells(line, palette)):
            x = 8 + column * WIDE
            ink, back = look.get("front") or front, look.get("back")
            if look.get("reverse"):
                ink, back = back or ground, ink
            if back:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{WIDE + 0.3:.1f}" height="{TALL}" fill="{back}"/>')
            if sign == " ":
                continue
            faint = ' opacity="0.6"' if look.get("faint") else ""
            if "\u2800" <= sign <= "\u28ff":
                places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
                dots = [places[bit] for bit in range(8) if ord(sign) - 0x2800 >> bit & 1]
                out += [f'<circle cx="{x + WIDE * (0.25 + 0.5 * dx):.1f}" cy="{y + TALL * (0.125 + 0.25 * dy):.1f}" r="1.1" fill="{ink}"{faint}/>' for dx, dy in dots]
                continue
            bold = ' font-weight="bold"' if look.get("bold") else ""
            out.append(f'<text x="{x:.1f}" y="{y + TALL * 0.76:.1f}" fill="{ink}"{bold}{faint}>{html.escape(sign)}</text>')
    return "\n".join([*out, "</svg>", ""])


class Captures:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.binary = str(pathlib.Path(args.binary).resolve())
        self.missed = []
        self.written = 0

    def console(self, *words, check=True):
        return subprocess.run([self.binary, *words], cwd=self.folder, capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL)

    def pages(self, pages, ready, *words, then=None, after=None):
        """Shows a command's pages at all sizes and in all themes, once the first has these words and `then` was done."""
        pages = [page for page in pages if self.args.pages in page[0]]
        for size in self.args.sizes.split(",") if pages else []:
            for theme in self.args.themes.split(","):
                chosen = [] if theme == "mono" else ["--theme", theme]
                terminal = Terminal(self.folder, size, theme, [self.binary, *words, *chosen])
                try:
                    self.walk(terminal, pages, ready, size, theme, then)
                finally:
                    terminal.end()
                    if after:
                        after()

    def walk(self, terminal, pages, ready, size, theme, then):
        terminal.wait(ready)
        if then:
            then()
        for name, keys, words, back in pages:
            terminal.keys(keys)
            name = f"{size}-{theme}-{name}"
            if not terminal.wait(words):
                self.missed.append(f"{name}: no {words!r} within {DEADLINE} s")
            out = pathlib.Path(self.args.folder)
            (out / f"{name}.txt").write_text(terminal.text())
            (out / f"{name}.svg").write_text(svg(terminal.text(colours=True), size, theme))
            self.written += 1
            terminal.keys(back)

    def signal(self, run, rank, sent):
        """Sends a signal to a rank of a run: the process itself, by the mark in its environment."""
        for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                marks = dict(word.split("=", 1) for word in entry.read_text(errors="replace").split("\0") if "=" in word)
                ours = os.readlink(entry.parent / "cwd").startswith(str(self.folder.resolve()))
            except OSError:
                continue
            if ours and marks.get("RANKDECK_RUN", "").startswith(run) and marks.get("RANK") == str(rank):
                os.kill(int(entry.parent.name), sent)

    def watchers(self, run, verb, host, sent):
        """Sends a signal to a host's agent or guard of a run."""
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_text(errors="replace").split("\0")
            except OSError:
                continue
            if words[1:3] == ["agent", verb] and any(word.startswith(run + "-") for word in words) and host in words:
                os.kill(int(entry.parent.name), sent)

    def lost(self, train, endless):
        """Pages of a run with one silent host whose ranks keep running."""
        if not any(self.args.pages in page[0] for page in LOST):
            return
        self.console(*train, "--name", "unheard", *endless, "--detach")
        agent = lambda sent: self.watchers("unheard", "serve", "node1", sent)
        try:
            # A guard kills the ranks of an agent that stands still.
            self.watchers("unheard", "guard", "1", signal.SIGSTOP)
            self.pages(LOST, "all-reduced", "attach", "unheard", then=lambda: agent(signal.SIGSTOP), after=lambda: agent(signal.SIGCONT))
        finally:
            self.watchers("unheard", "guard", "1", signal.SIGCONT)
            self.console("stop", "unheard", check=False)

    def faults(self, train, endless):
        """Pages of a run with a frozen rank, and of its end when that is killed."""
        if not any(self.args.pages in page[0] for page in [*FROZEN, *KILLED]):
            return
        self.console(*train, "--name", "broken", *endless, "--detach")
        try:
            time.sleep(3)
            self.signal("broken", 1, signal.SIGSTOP)
            self.pages(FROZEN, "frozen", "attach", "broken")
            self.signal("broken", 1, signal.SIGKILL)
            self.pages(KILLED, "run has ended", "attach", "broken")
        finally:
            self.console("stop", "broken", check=False)

    def run(self):
        shutil.copy(ROOT / "hosts.toml", self.folder)
        shutil.copytree(ROOT / "configs", self.folder / "configs")
        train = ["run", "configs/cartpole_ppo.toml", "--headless", "--set", "checkpoint.every=20"]
        self.console(*train, "--name", "first", "--until", "iters=60", check=False)
        endless = ["--set", "eval.stop_value=501", "--set", "run.total_steps=500_000_000", "--set", "learn.anneal_lr=false"]
        self.console(*train, "--name", "second", *endless, "--detach")
        try:
            self.pages(RUNNING, "all-reduced", "attach", "second")
        finally:
            self.console("stop", "second", check=False)
        self.pages(OVER, "run has ended", "attach", "second")
        self.faults(train, endless)
        self.lost(train, endless)
        self.pages(HOME, "second-", "home")
        self.pages([("play", [], "return", [])], "rankdeck play", "play", "second:latest")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--binary", default=str(ROOT / "target/release/rankdeck"))
    parser.add_argument("--sizes", default="80x24,120x40,200x60")
    parser.add_argument("--themes", default="dark,light,mono")
    parser.add_argument("--pages", default="", help="only pages whose name has this")
    args = parser.parse_args()
    if not shutil.which("tmux"):
        sys.exit("captures: tmux is needed; install it")
    pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankdeck-") as folder:
        captures = Captures(args, pathlib.Path(folder))
        captures.run()
    print(f"{captures.written} pages in {args.folder}")
    sys.exit("\n".join(captures.missed) if captures.missed else 0)


if __name__ == "__main__":
    main()
