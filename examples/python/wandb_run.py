"""Sends a run to W&B, during the run or after it: `python wandb_run.py runs/RUN`. WANDB_MODE=offline writes it to a directory.

It needs only wandb: configuration, curves and evaluations are read from the run's directory. For a run on other hosts,
copy them first: `rankdeck fetch RUN '*.csv'`. Sending a run again appends to it.
"""

import argparse
import csv
import pathlib
import tomllib

import wandb


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path, help="its folder, runs/RUN")
    parser.add_argument("--project", default="rankdeck")
    args = parser.parse_args()
    name = args.run.resolve().name
    # The nearest: copies of code may have one, too.
    found = sorted(args.run.rglob("metrics.csv"), key=lambda path: len(path.parts))
    if not found:
        parser.error(f"no metrics.csv in {args.run}: `rankdeck fetch {name} '*.csv'` brings it from the host of rank 0")
    written = args.run / "console/experiment.toml"
    config = tomllib.loads(written.read_text()) if written.is_file() else {}
    # Secrets and paths of hosts stay here.
    config.pop("launch", None)
    run = wandb.init(project=args.project, id=name, name=name, config=config, resume="allow")
    run.define_metric("env_step")
    run.define_metric("*", step_metric="env_step")
    with found[0].open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file)):
            if line >= run.step:
                run.log({key: float(value) for key, value in row.items() if value}, step=line)
    run.finish()


if __name__ == "__main__":
    main()
