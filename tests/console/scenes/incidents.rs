//! Runs with verdicts, an end, a prompt, an unreachable host.

use super::*;

fn note(text: &str) -> Advice {
    Advice { text: text.into(), command: String::new() }
}

/// Rank 3 of 4 does not enter a collective that the others wait in.
pub fn behind() -> Model {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let mut report = verdict(
        3,
        "node-b",
        VerdictKind::Behind,
        "3 ranks wait 6.2 s in #12,042 all_reduce grad, which rank 3 has not entered",
    );
    report.card.facts = vec![
        "ranks 0, 1, 2 are inside #12,042 all_reduce grad (36,620 bytes f32)".into(),
        "rank 3 left #12,041 6.4 s ago and is in phase learn since 6.4 s without progress".into(),
        "process 4303 is in state R at 100% of one core".into(),
    ];
    report.card.actions = vec![note("read its log (l)"), note("restart from the latest checkpoint (r)")];
    model.verdicts.push(report);
    let mut slow =
        verdict(1, "node-a", VerdictKind::Straggler, "rank 1 needs 1.6 times the median of a rollout");
    slow.severity = Severity::Amber;
    slow.confidence = Confidence::Possible;
    model.verdicts.push(slow);
    for rank in &mut model.ranks {
        if let Some(page) = rank.sample.as_mut().and_then(|sample| sample.page.as_mut()) {
            page.phase = Phase::Learn;
            if rank.rank.0 == 3 {
                page.phase_age_ms = 6400;
                (page.collective.entered, page.collective.left, page.collective.age_ms) =
                    (12_041, 12_041, 6400);
            } else {
                (page.collective.entered, page.collective.left, page.collective.age_ms) =
                    (12_042, 12_041, 6200);
            }
        }
        rank.steps_per_s = None;
    }
    model
}

/// Rank 1 was killed by the out-of-memory killer; the others are stopping.
pub fn dead() -> Model {
    let mut model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    model.run.state = RunState::Draining;
    model.ranks[1].life = RankLife::Exited(Exit::Signal { signal: 9, out_of_memory: true });
    model.ranks[1].error =
        Some(("cuda: out of memory while allocating 2.0 GiB".into(), "lower env.num_envs".into()));
    model.ranks[3].life = RankLife::Exited(Exit::Signal { signal: 15, out_of_memory: false });
    let mut report =
        verdict(1, "node-a", VerdictKind::Dead, "rank 1 was killed: the kernel ran out of memory");
    report.card.facts = vec!["memory.events: oom_kill moved from 0 to 1".into()];
    report.card.actions = vec![note("lower env.num_envs, then press r")];
    model.verdicts.push(report);
    model.hosts[1].stopped = Some(Vec::new());
    model
}

/// The stop value was reached, the stop is verified.
pub fn over() -> Model {
    let mut model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    model.run.state = RunState::Over;
    model.run.ended = Some(STARTED.plus(760_000));
    model.run.outcome = Some(RunOutcome::Succeeded);
    model.run.exit_code = Some(0);
    model.run.reason = "evaluation 492.3 reached the stop value 490 at env_step 1,228,800".into();
    model.evals.back_mut().unwrap().stop = true;
    for rank in &mut model.ranks {
        rank.life = RankLife::Exited(Exit::Code { code: 0 });
    }
    for host in &mut model.hosts {
        host.stopped = Some(Vec::new());
        host.gpus_free = vec![0, 1];
    }
    model
}

/// The same as [`behind`], after an inspection: with evidence.
pub fn behind_closely() -> Model {
    let mut model = behind();
    let report = model.verdicts.first_mut().unwrap();
    let call = CollectiveRef {
        inside: true,
        seq: 12_042,
        age_ms: 6_200,
        call: CollectiveCall {
            op: "all_reduce".into(),
            tag: "grad".into(),
            count: 9_155,
            dtype: "f32".into(),
            bytes: 36_620,
            site: "src/trainer/dist/ddp.rs:212".into(),
            ..CollectiveCall::default()
        },
    };
    let side = |rank: u32, host: &str| RankEvidence {
        rank: Rank(rank),
        host: host.into(),
        pid: Some(4300 + rank),
        train_iter: Some(752),
        env_step: Some(96_256),
        phase: "learn".into(),
        phase_age_ms: Some(6_400),
        silent_ms: Some(6_200),
        os: "sleeping (S), cpu 0 %, in futex: futex_do_wait".into(),
        last_line: "iteration 751, env_step 384,512, 63,102 steps/s".into(),
        ..RankEvidence::default()
    };
    report.reason_code = Reason::Lock;
    report.confidence = Confidence::Likely;
    report.reason = "rank 3 on node-b waits for a lock in its phase learn (sample) at \
                   src/trainer/replay/gather.rs:88 in replay::gather; 3 ranks wait in all_reduce grad #12042"
        .into();
    *report.card = Card {
        opposite: None,
        culprit: Some(RankEvidence {
            activity: "sample".into(),
            silent_ms: Some(6_400),
            call: Some(CollectiveRef { inside: false, seq: 12_041, age_ms: 6_400, ..call.clone() }),
            blocked_on: "futex, held by thread 4303 itself".into(),
            at: "src/trainer/replay/gather.rs:88 in replay::gather".into(),
            stack: vec![
                "__futex_abstimed_wait_common  /lib/x86_64-linux-gnu/libc.so.6".into(),
                "std::sync::mutex::Mutex::lock".into(),
                "replay::gather  src/trainer/replay/gather.rs:88".into(),
                "ppg::auxiliary  src/trainer/algo/ppg.rs:231".into(),
            ],
            ..side(3, "node-b")
        }),
        waiter: Some(RankEvidence { call: Some(call), ..side(0, "node-a") }),
        facts: vec![],
        observations: vec![],
        others: vec![RankGroup {
            ranks: vec![Rank(1), Rank(2)],
            text: "waits in all_reduce grad #12042 since 6.1 s".into(),
        }],
        ruled_out: vec![
            "all ranks made the same collectives up to #12041".into(),
            "its process is there and not stopped nor frozen by its cgroup".into(),
            "nothing is retransmitted on its 3 TCP connections".into(),
            "silent for 6.4 s; up to 5.0 s is taken as usual there".into(),
        ],
        actions: vec![
            Advice {
                text: "read its log".into(),
                command: "rankdeck logs cartpole_ppo-20260101-120000 --rank 3".into(),
            },
            Advice {
                text: "restart from the latest checkpoint".into(),
                command: "rankdeck restart cartpole_ppo-20260101-120000".into(),
            },
        ],
    };
    model
}

/// A rank failed, and one host still has processes.
pub fn over_with_survivors() -> Model {
    let mut model = dead();
    model.run.state = RunState::Over;
    model.run.ended = Some(STARTED.plus(760_000));
    model.run.outcome = Some(RunOutcome::Failed);
    model.run.exit_code = Some(1);
    model.run.reason = "rank 1 on node-a was killed by the out-of-memory killer".into();
    model.hosts[0].stopped = Some(vec![
        Survivor {
            pid: 4711,
            rank: Some(Rank(1)),
            state: 'D',
            command: "rankdeck-trainer --config runs/ppo/experiment.toml".into(),
        },
        Survivor { pid: 4712, rank: None, state: 'Z', command: "python env_worker.py".into() },
    ]);
    model
}

/// An unknown host key.
pub fn host_key() -> Model {
    let mut model = connecting(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let prompt = Prompt::UnknownHostKey {
        host: "[node-b.lab.example]:2222".into(),
        key_type: "ssh-ed25519".into(),
        fingerprint: "SHA256:b7Yk2tQxq0nO3m1v8JwP5uZr4cE6fG9hI0jK1lM2nN4".into(),
    };
    model.hosts[0].link = LinkState::Ready { probe: probe(0) };
    model.hosts[1].link = LinkState::Asking { prompt: prompt.clone() };
    model.hosts[1].prompt = Some(prompt);
    model
}

/// Hosts at every stage of connecting.
pub fn on_the_way() -> Model {
    let mut model = connecting(&[
        gpu("node-a", 8),
        gpu("node-b", 8),
        gpu("node-c", 8),
        gpu("node-d", 8),
        gpu("node-e", 8),
    ]);
    model.hosts[0].link = LinkState::Ready { probe: probe(8) };
    model.hosts[1].link = LinkState::Uploading {
        what: "/tmp/build/rankdeck-trainer".into(),
        done: 4_700_000,
        total: 7_700_000,
    };
    model.hosts[2].link = LinkState::Connecting { attempt: 3 };
    model.hosts[3].link = LinkState::Failed(HintedError {
        error: "node-d: connection refused by 10.0.0.4:22".into(),
        hint: "check that sshd runs there: ssh 10.0.0.4".into(),
    });
    model.hosts[4].link = LinkState::Lost { reason: "node-e: no route to host".into(), retry_ms: 4_000 };
    model.run.generation = Generation(0);
    model
}

/// Two hosts as in the hosts file, of which any may be excluded from the next generation.
pub fn pickable() -> Model {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    for planned in &mut model.plan.as_mut().unwrap().hosts {
        planned.host = spare(&planned.host.name);
    }
    model
}

/// A host of the hosts file.
pub fn spare(name: &str) -> Host {
    Host { name: name.into(), address: name.into(), nproc: Some(2), ..Host::default() }
}

/// No message from one host for ten minutes; the link still retries.
pub fn unreachable() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let host = &mut model.hosts[1];
    host.link = LinkState::Lost {
        reason: "node-b: cannot connect to 10.0.0.2:22: no answer within 10 s".into(),
        retry_ms: 4_300,
    };
    host.link_since = ago(800);
    host.last_message_at = Some(ago(598_000));
    model
}
