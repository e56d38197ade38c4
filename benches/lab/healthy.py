"""Healthy programs of many kinds, one a function: none may ever get a red verdict or be ended.

`python healthy.py NAME` runs one without end as a rank (RANK, WORLD_SIZE and MASTER_* are set). Those of the first group are odd in how they
use collectives or optimizers, those of the second wait long for an outside party, those of the third are ordinary ones. LONG have pauses of
minutes.
"""
import asyncio, concurrent.futures, contextlib, datetime, fcntl, gc, multiprocessing, os, pathlib, queue, random, socket, subprocess, sys, tempfile, threading, time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
CASES, LONG = {}, set()
CHANCE = random.Random(RANK)
PACE = 0.05


def case(function=None, *, long=False):
    if function is None:
        return lambda inner: case(inner, long=long)
    CASES[function.__name__] = function
    if long:
        LONG.add(function.__name__)
    return function


def network(width=32, normalized=False):
    torch.manual_seed(1)
    middle = [nn.BatchNorm1d(width)] if normalized else []
    return nn.Sequential(nn.Linear(16, width), *middle, nn.Tanh(), nn.Linear(width, 1))


def batch(rows=8):
    time.sleep(PACE)
    return torch.randn(rows, 16)


def learn(model, optimizer, rows=8):
    loss = model(batch(rows)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def replica(**more):
    model = DDP(network(**more))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= WORLD


def report(step):
    if RANK == 0 and step % 20 == 0:
        print(f"iteration {step}", flush=True)


def steps():
    step = 0
    while True:
        step += 1
        yield step
        report(step)


# How collectives and optimizers are used.

@case
def probe():
    """Rank 0 fits a probe with an optimizer of its own at each evaluation; the others wait."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 40 == 0:
            if RANK == 0:
                head = nn.Linear(16, 1)
                own = torch.optim.Adam(head.parameters())
                for _ in range(60):
                    learn(head, own)
            dist.barrier()


@case
def join_uneven():
    """Uneven batches below `Join`."""
    from torch.distributed.algorithms.join import Join
    model, optimizer = replica()
    for step in steps():
        with Join([model]):
            for _ in range(20 + 5 * RANK):
                learn(model, optimizer)


@case
def local_sgd_by_time():
    """As many local steps as fit into some time, then the weights are averaged."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        until = time.time() + 0.3
        while time.time() < until:
            time.sleep(CHANCE.uniform(0, 0.05))
            learn(model, optimizer)
        average(model)


@case
def target_kl():
    """Local epochs that end by each rank's own measure, then averaging."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        for _ in range(CHANCE.randint(1, 10)):
            learn(model, optimizer)
        average(model)


@case
def inner_steps():
    """MAML: each rank makes one to four inner steps with an optimizer of its own, then one shared step."""
    model, optimizer = replica()
    for step in steps():
        fast = network()
        inner = torch.optim.SGD(fast.parameters(), lr=1e-2)
        for _ in range(CHANCE.randint(1, 4)):
            learn(fast, inner)
        learn(model, optimizer)


@case
def thread_with_group():
    """A thread reports by collectives of a group of its own."""
    group = dist.new_group()
    def talk():
        while True:
            time.sleep(0.7)
            dist.all_reduce(torch.ones(1), group=group)
    model, optimizer = replica()
    threading.Thread(target=talk, daemon=True).start()
    for step in steps():
        learn(model, optimizer)


@case
def post_local_sgd():
    """Weights are averaged every four steps; a scalar is all-reduced at each for the log."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        loss = learn(model, optimizer)
        dist.all_reduce(loss.detach().clone())
        if step % 4 == 0:
            average(model)


@case
def population():
    """Independent learners with equal first weights that share a scalar."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 * (RANK + 1))
    for step in steps():
        loss = learn(model, optimizer)
        scores = [torch.zeros(1) for _ in range(WORLD)]
        dist.all_gather(scores, loss.detach().reshape(1))


@case
def first_barrier():
    """Rank 0 comes to the first barrier of the run while the simulators of the others start."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 200 == 100:
            if RANK:
                time.sleep(15)
            dist.barrier()


@case
def accumulate():
    """Gradients of four batches, three of them below `no_sync`."""
    model, optimizer = replica()
    for step in steps():
        optimizer.zero_grad()
        for part in range(4):
            with model.no_sync() if part < 3 else contextlib.nullcontext():
                model(batch()).square().mean().backward()
        optimizer.step()


@case
def two_networks():
    """Two networks in turn, one of them five times as often."""
    (actor, first), (critic, second) = replica(), replica(width=48)
    for step in steps():
        for _ in range(5):
            learn(critic, second)
        learn(actor, first)


@case
def skipped_steps():
    """A gradient scaler skips steps on all ranks alike."""
    model, optimizer = replica()
    shared = random.Random(7)
    for step in steps():
        loss = model(batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if shared.random() > 0.3:
            optimizer.step()


@case
def sharded_optimizer():
    """ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DDP(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for step in steps():
        learn(model, optimizer)


@case
def local_batch_norm():
    """Statistics of a normalization that stay local."""
    model = DDP(network(normalized=True), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        learn(model, optimizer)


@case
def subgroups():
    """Pairs of ranks reduce among themselves at their own pace."""
    pair = dist.new_group([0, 1])
    model, optimizer = replica()
    for step in steps():
        if RANK < 2 and step % 3 == 0:
            dist.all_reduce(torch.ones(4), group=pair)
        learn(model, optimizer)


@case
def objects():
    """Large Python objects are gathered, and one rank sends to another."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 10 == 0:
            found = [None] * WORLD
            dist.all_gather_object(found, {"rows": list(range(20_000 * (RANK + 1)))})
        if step % 10 == 5 and WORLD > 1:
            if RANK == 0:
                dist.send(torch.ones(8), 1)
            elif RANK == 1:
                dist.recv(torch.ones(8), 0)


@case
def target_network():
    """A target network that follows slowly, and an optimizer with groups of its own rates."""
    model = DDP(network())
    target = network()
    first, *rest = model.parameters()
    optimizer = torch.optim.Adam([{"params": [first], "lr": 1e-4}, {"params": rest, "lr": 1e-3}])
    for step in steps():
        learn(model, optimizer)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters()):
                slow.lerp_(fast, 0.01)


# The other side is slow.

def server(seconds):
    """A server that answers each line after some time; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    def serve(connection):
        with contextlib.suppress(OSError):
            while connection.recv(64):
                time.sleep(seconds())
                connection.sendall(b"done\n")
    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def serve_for_ever(pipe, seconds):
    pipe.send(server(lambda: seconds))
    time.sleep(1e6)


def remote(seconds):
    """The same in a separate process that the program never waits for."""
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=serve_for_ever, args=(there, seconds), daemon=True).start()
    return here.recv()


def ask(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"score\n")
        return connection.recv(64)


@case
def reward_service():
    """Rank 0 asks a reward model, which answers after 20 s."""
    port = remote(20)
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 100 == 50 and RANK == 0:
            ask(port)


@case
def reward_service_async():
    port = remote(20)
    async def question():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"score\n")
        await reader.readline()
        writer.close()
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 100 == 50 and RANK == 0:
            asyncio.run(question())


@case
def reward_service_threads():
    port = remote(15)
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 100 == 50 and RANK == 0:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(ask, [port] * 4))


def nap(seconds):
    time.sleep(seconds)
    return seconds


@case
def pool_that_sleeps():
    model, optimizer = replica()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step in steps():
            learn(model, optimizer)
            if step % 150 == 50 and RANK == 0:
                pool.map(nap, [18, 18])


@case
def pool_that_asks():
    port = remote(18)
    model, optimizer = replica()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step in steps():
            learn(model, optimizer)
            if step % 150 == 50 and RANK == 1:
                pool.map(ask, [port] * 2)


def fill_slowly(items):
    while True:
        time.sleep(14)
        items.put(1)


@case
def manager_queue():
    """The queue of a manager's process, filled by another process."""
    model, optimizer = replica()
    context = multiprocessing.get_context("fork")
    manager = context.Manager()
    items = manager.Queue()
    context.Process(target=fill_slowly, args=(items,), daemon=True).start()
    for step in steps():
        learn(model, optimizer)
        if step % 150 == 50 and RANK == 0:
            items.get()


def environment(pipe, rank):
    chance, count = random.Random(rank), 0
    while True:
        pipe.recv()
        count += 1
        time.sleep(20 if count % 200 == 100 else chance.uniform(0, 0.05))
        pipe.send([0.0] * 16)


@case
def worker_that_resets():
    """An environment in a process; every 200th step is a reset of 20 s."""
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=environment, args=(there, RANK), daemon=True).start()
    model, optimizer = replica()
    for step in steps():
        here.send(1)
        here.recv()
        learn(model, optimizer)


@case
def simulator_in_rollout():
    """Every iteration of every rank asks a simulator that answers in one to nine seconds."""
    port = server(lambda: CHANCE.uniform(1, 9))
    model, optimizer = replica()
    for step in steps():
        ask(port)
        learn(model, optimizer)


@case(long=True)
def long_evaluation():
    """Rank 0 evaluates for 90 s; the others wait in a broadcast."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 300 == 100:
            if RANK == 0:
                until = time.time() + 90
                while time.time() < until:
                    model.module(torch.randn(4, 16))
                    time.sleep(0.02)
            dist.broadcast(torch.zeros(1), 0)


@case(long=True)
def long_upload():
    """Rank 0 uploads by a program; the others wait at a barrier."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 300 == 100:
            if RANK == 0:
                subprocess.run(["sleep", "80"], check=True)
            dist.barrier()


@case(long=True)
def long_download():
    """Rank 0 downloads before the first step, slowly, from a server that sends a little each time."""
    if RANK == 0:
        port = remote(8)
        for _ in range(12):
            ask(port)
    dist.barrier()
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)


@case(long=True)
def long_checkpoint():
    """Rank 0 writes a large file for more than a minute."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step % 300 == 100:
            if RANK == 0:
                with tempfile.NamedTemporaryFile(suffix=".pt") as file:
                    for _ in range(70):
                        file.write(bytes(1 << 20))
                        file.flush()
                        time.sleep(1)
            dist.barrier()


@case(long=True)
def long_dataset_lock():
    """All ranks of a host want one lock for the data set; the holder prepares for 70 s."""
    path = pathlib.Path(tempfile.gettempdir()) / f"healthy-{os.environ.get('RANKDECK_RUN', os.getppid())}.lock"
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done := path.with_suffix(".done")).exists():
            until = time.time() + 70
            while time.time() < until:
                sum(range(1000))
                time.sleep(0.01)
            done.touch()
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)


# Ordinary ones.

@case
def data_loader():
    """Two workers, one of them slow now and then."""
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, index):
            time.sleep(6 if index % 97 == 96 else 0.01)
            return torch.zeros(16)
    model, optimizer = replica()
    loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2)
    for step in steps():
        for rows in loader:
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@case
def warm_up():
    """A minute of random actions before the first update, not equally long."""
    until = time.time() + 50 + 8 * RANK
    while time.time() < until:
        batch()
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)


@case
def real_time():
    """A robot at 10 Hz; 200 steps before each update."""
    model, optimizer = replica()
    for step in steps():
        for _ in range(200):
            time.sleep(0.1)
        learn(model, optimizer)


@case
def sampler_thread():
    """A thread collects into a bounded queue."""
    items = queue.Queue(4)
    def collect():
        while True:
            time.sleep(CHANCE.uniform(0, 0.4))
            items.put(torch.randn(8, 16))
    threading.Thread(target=collect, daemon=True).start()
    model, optimizer = replica()
    for step in steps():
        loss = model(items.get()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case
def programs_beside():
    """Programs are started all the time, as trackers and version control do."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        subprocess.run(["git", "--version"], capture_output=True, check=False)


@case
def collected_garbage():
    """Long pauses of the collector on one rank, and a timer that dumps stacks."""
    import faulthandler
    faulthandler.dump_traceback_later(30, repeat=True, file=open(os.devnull, "w"))
    model, optimizer = replica()
    heap = [[index] for index in range(1_500_000)] if RANK == 1 else []
    for step in steps():
        learn(model, optimizer)
        if step % 50 == 0:
            gc.collect()
    print(len(heap))


@case
def growing_rollouts():
    """Each iteration takes longer than the one before."""
    model, optimizer = replica()
    for step in steps():
        for _ in range(min(step, 250)):
            batch(1)
        learn(model, optimizer)


@case
def uneven_work():
    """Rank 0 has three times the work of the others."""
    model, optimizer = replica()
    for step in steps():
        if RANK == 0:
            time.sleep(2 * PACE)
        learn(model, optimizer)


@case
def self_play():
    """Opponents are read from and written to files all the time."""
    model, optimizer = replica()
    with tempfile.TemporaryDirectory() as folder:
        for step in steps():
            learn(model, optimizer)
            if step % 10 == 0:
                torch.save(model.module.state_dict(), f"{folder}/opponent-{step % 50}.pt")
                torch.load(f"{folder}/opponent-{step % 50}.pt")


@case
def compiled():
    """One function is compiled for a long time: half a minute of computation by one core, in Python."""
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)
        if step == 50:
            until, total = time.time() + 30, 0
            while time.time() < until:
                total += sum(index * index for index in range(20_000))


@case
def polls_for_policy():
    """Actors poll a file for a new policy; the learner writes one every ten seconds."""
    dist.barrier()
    path = pathlib.Path(tempfile.gettempdir()) / f"healthy-{os.environ.get('RANKDECK_RUN', os.getppid())}.policy"
    for step in steps():
        if RANK == 0:
            time.sleep(10)
            path.write_text(str(step))
        else:
            while not path.exists() or int(path.read_text() or 0) < step:
                time.sleep(0.5)
        dist.barrier()


@case
def asyncio_actors():
    """Coroutines that wait for their environments."""
    async def act():
        for _ in range(10):
            await asyncio.sleep(CHANCE.uniform(0, 0.8))
    async def rollout():
        await asyncio.gather(*(act() for _ in range(8)))
    model, optimizer = replica()
    for step in steps():
        asyncio.run(rollout())
        learn(model, optimizer)


@case
def quiet_output():
    """Nothing is printed, ever."""
    global report
    report = lambda step: None
    model, optimizer = replica()
    for step in steps():
        learn(model, optimizer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    CASES[sys.argv[1]]()
