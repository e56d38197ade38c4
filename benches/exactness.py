"""Checks promises 5 and 6 on a whole run of the demo: totals equal the sums of the ranks' own counters, replicas equal after every update.

    python3 benches/exactness.py

Every `progress` line of the JSON output is compared with the sum of its `per_rank` array, and every fingerprint record of rank 0's agent must say that
all ranks are equal. A fingerprint is a chain over the weights after each update of its iteration, compared in every iteration over all ranks.
"""

import json
import subprocess
import sys

command = ["target/release/rankdeck", "run", "configs/cartpole_ppo.toml", "--hosts", "hosts.toml", "--headless", "--json"]
lines = [json.loads(line) for line in subprocess.run(command + sys.argv[1:], stdout=subprocess.PIPE, text=True).stdout.splitlines()]
end = lines[-1]
progress = [line for line in lines if line["kind"] == "progress"]
for line in progress:
    for key in ("env_step", "samples", "episodes"):
        assert line[key] == sum(rank[key] for rank in line["per_rank"]), (key, line)
    assert line["consistent"], line
records = [json.loads(line) for line in open(f"runs/{end['run']}/node0/records.jsonl")]
events = [record["event"]["said"] for record in records if record["event"]["event"] == "rank"]
compared = [event for event in events if event["kind"] == "fingerprint"]
assert compared and all(event["equal"] and len(set(event["values"])) == 1 for event in compared), compared
verdicts = [line for line in lines if line["kind"] == "verdict"]
assert not verdicts, verdicts
print(f"{len(progress)} reports: all-reduced totals equal the sums of the ranks' counters exactly")
print(f"{len(compared)} reported fingerprints, the last after update {compared[-1]['update']} of {progress[-1]['updates']}: all ranks equal")
print(f"outcome {end['outcome']}, {progress[-1]['env_step']} env steps, stop proved {end['proved']}")
