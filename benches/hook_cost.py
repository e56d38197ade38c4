#!/usr/bin/env python3
"""What the hook costs a script per optimiser step: the same steps with and without fingerprints of the weights, in turn, in one run.

    python3 benches/hook_cost.py [--rounds 20] [--width 64 1024]

Needs an interpreter with PyTorch. One rank over Gloo writes a status page as an agent would read it. Each round measures a second of steps without
and one with fingerprints; the figure is the median of the ratios of the pairs, and their quartiles. Times are CPU times of the process.
"""
import argparse, os, pathlib, statistics, sys, tempfile, time

HOOK = pathlib.Path(__file__).resolve().parent.parent / "src/agent/hook"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 1024])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29741", RANKDECK_STATUS_PAGE=os.path.join(folder, "page"))
        sys.path.insert(0, str(HOOK))
        # Python may have a sitecustomize of its own by now.
        import importlib.util

        spec = importlib.util.spec_from_file_location("sitecustomize", HOOK / "sitecustomize.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        weights = sys.modules["rankdeck_weights"]
        take = weights.Weights.after
        for width in args.width:
            model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 8))
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
            batch = torch.randn(64, width)

            def second():
                begun, end, steps = time.process_time(), time.process_time() + 1.0, 0
                while time.process_time() < end:
                    model(batch).square().mean().backward()
                    optimiser.step()
                    optimiser.zero_grad()
                    steps += 1
                return (time.process_time() - begun) / steps

            second()
            ratios, plain = [], []
            for number in range(args.rounds):
                figures = {}
                # The order changes, so that a drift of the machine's speed falls on both.
                for on in (True, False) if number % 2 else (False, True):
                    weights.Weights.after = take if on else lambda self: None
                    figures[on] = second()
                ratios.append(figures[True] / figures[False])
                plain.append(figures[False])
            weights.Weights.after = take
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"width {width}: {statistics.median(plain) * 1e6:.0f} us a step without; with fingerprints x{middle:.4f} (quartiles {low:.4f} to {high:.4f}, {args.rounds} pairs)", flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
