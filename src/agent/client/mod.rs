//! `rankdeck.py`, by which a Python program reports to its agent (docs/reporting.md).
//!
//! Owner: the program that imports it; the rules stand at its head. The hook puts it on `PYTHONPATH`, and
//! `rankdeck client` prints it.

/// The module.
pub const SOURCE: &str = include_str!("rankdeck.py");

#[cfg(test)]
mod tests {
    //! The client in real interpreters, before agents that listen, refuse, do not read, or are not there.

    use super::SOURCE;
    use rankdeck_proto::message::{Counters, RankEvent};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::{Command, Output, Stdio};
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// A script that may import the client, as rank `rank` of two.
    fn python(folder: &Path, rank: u32, script: &str) -> Command {
        std::fs::write(folder.join("rankdeck.py"), SOURCE).unwrap();
        std::fs::write(folder.join("train.py"), script).unwrap();
        let mut command = Command::new("python3");
        command.arg(folder.join("train.py")).stdin(Stdio::null()).current_dir(folder);
        command.env("RANKDECK_EVENTS", folder.join("events.sock")).env("RANKDECK_GENERATION", "3");
        command.env("RANKDECK_RANK", rank.to_string()).env("RANK", "7").env("WORLD_SIZE", "2");
        command
    }

    fn lines(stream: UnixStream) -> Vec<RankEvent> {
        let lines = BufReader::new(stream).lines();
        lines.map(|line| serde_json::from_str(&line.unwrap()).expect("an event")).collect()
    }

    /// Runs a script before an agent that reads; returns its events and its end.
    fn run_script(rank: u32, script: &str) -> (Vec<RankEvent>, Output) {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("events.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let child = python(folder.path(), rank, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut readers: Vec<JoinHandle<Vec<RankEvent>>> = Vec::new();
        loop {
            let ended = child.try_wait().unwrap().is_some();
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                readers.push(std::thread::spawn(move || lines(stream)));
            }
            if ended {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let events = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        (events, child.wait_with_output().unwrap())
    }

    fn counters(events: &[RankEvent]) -> Vec<Counters> {
        let counters = |event: &RankEvent| match event {
            RankEvent::Counters(counters) => Some(*counters),
            _ => None,
        };
        events.iter().filter_map(counters).collect()
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn program_reports_counters_values_evals_and_checkpoints() {
        let script = "import rankdeck\n\
                  rankdeck.report(100, {'losses/value': 0.5}, returns=[1.0, 5.0], kl=float('nan'))\n\
                  rankdeck.eval([10, 20.0], [5, 7], duration_s=0.5, stop=True)\n\
                  rankdeck.checkpoint('last.pt', 'best', env_step=9)\n\
                  print(rankdeck.lost())\n";
        let (events, output) = run_script(0, script);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "0\n"), "{output:?}");
        let expected = serde_json::json!([
            {"kind": "hello", "rank": 0, "generation": 3},
            {"kind": "joined", "world_size": 2, "backend": "none", "device": "cpu"},
        ]);
        assert_eq!(serde_json::to_value(&events[..2]).unwrap(), expected);
        let [own] = counters(&events)[..] else { panic!("{events:?}") };
        assert_eq!(
            (own.train_iter, own.env_step, own.samples, own.episodes, own.sum),
            (1, 100, 100, 2, true)
        );
        assert_eq!(
            (own.returns.sum, own.returns.count, own.returns.min, own.returns.max),
            (6.0, 2, 1.0, 5.0)
        );
        let scalars = events.iter().find_map(|event| match event {
            RankEvent::Scalars { env_step, values, not_finite, .. } => Some((*env_step, values, not_finite)),
            _ => None,
        });
        let (env_step, values, not_finite) = scalars.unwrap();
        assert_eq!((env_step, values["losses/value"], not_finite["kl"]), (200, 0.5, 1));
        let evaluation = events.iter().find_map(|event| match event {
            RankEvent::Eval(evaluation) => Some(evaluation.clone()),
            _ => None,
        });
        let evaluation = evaluation.unwrap();
        assert_eq!((evaluation.env_step, evaluation.episodes, evaluation.length_mean), (200, 2, 6.0));
        assert_eq!((evaluation.return_mean, evaluation.return_std, evaluation.stop), (15.0, 5.0, true));
        let RankEvent::Checkpoint { path, env_step, reason, .. } = events.last().unwrap() else {
            panic!("{events:?}")
        };
        assert!(path.starts_with('/') && path.ends_with("/last.pt"), "{path}");
        assert_eq!((*env_step, reason.as_str()), (9, "best"));
    }

    #[test]
    fn only_rank_0_reports_values_and_evaluations() {
        let script =
            "import rankdeck\nrankdeck.report(8, loss=1.0)\nrankdeck.eval([1])\nrankdeck.checkpoint('x')\n";
        let (events, _) = run_script(1, script);
        assert_eq!(events.len(), 3, "hello, joined and counters: {events:?}");
        assert_eq!(counters(&events).len(), 1);
    }

    #[test]
    fn client_1_nothing_that_it_is_given_raises() {
        let script = "import rankdeck\n\
                  class Bad:\n    def __float__(self): raise SystemError('gpu')\n    __repr__ = __float__\n\
                  rankdeck.report('many')\nrankdeck.report(None, loss=1)\n\
                  rankdeck.report(1, loss='high', bad=Bad(), ok=2)\nrankdeck.report(float('nan'))\n\
                  rankdeck.report(1, values=5)\nrankdeck.report(1, returns='abc')\n\
                  rankdeck.eval([])\nrankdeck.eval(None)\nrankdeck.eval(['x'])\n\
                  rankdeck.eval([1], duration_s=float('inf'))\nrankdeck.checkpoint(5)\n\
                  rankdeck.checkpoint('x' * 100000)\n\
                  rankdeck.checkpoint(b'caf\\xe9'.decode('utf-8', 'surrogateescape'))\n\
                  print('alive', rankdeck.lost())\n";
        let (events, output) = run_script(0, script);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(0), "alive 13\n"),
            "{output:?}"
        );
        let messages = text(&output.stderr);
        assert_eq!(messages.lines().count(), 8, "bounded: {messages}");
        assert!(messages.contains("loss") && messages.contains("str"), "{messages}");
        assert_eq!(counters(&events).len(), 1);
        assert!(matches!(events.last(), Some(RankEvent::Checkpoint { path, .. }) if path.contains("caf")));
    }

    /// Reports as fast as it can, and prints by how many KiB it has grown.
    const BUSY: &str = "import rankdeck, resource, time\n\
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n\
                    for i in range(50000):\n    rankdeck.report(i, returns=1.0, **{'loss%d' % (i % 1000): 0.5})\n    \
                    if i % 100 == 0: rankdeck.eval([1.0]); rankdeck.checkpoint('x')\n\
                    rankdeck.report(50000)\n\
                    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n";

    #[test]
    fn client_2_unread_socket_costs_no_time_or_memory() {
        let folder = tempfile::tempdir().unwrap();
        for present in [false, true] {
            // Connections wait in the listener's queue and are not read.
            let _listener = present.then(|| UnixListener::bind(folder.path().join("events.sock")).unwrap());
            let output = python(folder.path(), 0, BUSY).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let grown: u64 = text(&output.stdout).trim().parse().unwrap();
            assert!(grown < 8 << 10, "{grown} KiB");
            assert!(text(&output.stderr).contains("lost"), "{output:?}");
        }
    }

    #[test]
    fn client_2_last_counters_always_arrive() {
        let (events, output) = run_script(1, BUSY);
        assert!(output.status.success());
        let all = counters(&events);
        let count: u64 = all.iter().map(|counters| counters.returns.count).sum();
        assert_eq!((all.last().unwrap().env_step, count), (50_000, 50_000), "no return is lost");
        assert!(all.len() < 1_000, "{}", all.len());
    }

    #[test]
    fn client_3_forks_are_silent_and_end_on_sigterm() {
        let script = "import os, rankdeck, signal, sys, threading\n\
                  rankdeck.should_stop()\nrankdeck.report(1)\n\
                  child = os.fork()\n\
                  if child == 0:\n    rankdeck.report(5)\n    rankdeck.eval([1])\n    \
                  os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n\
                  print(os.waitpid(child, 0)[1])\n\
                  child = os.fork()\n\
                  if child == 0:\n    rankdeck.report(5)\n    sys.exit(0)\n\
                  print(os.waitpid(child, 0)[1])\n";
        let (events, output) = run_script(0, script);
        assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), ["15", "0"], "{output:?}");
        assert_eq!(counters(&events).iter().map(|counters| counters.env_step).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn threads_may_all_report() {
        let script = "import rankdeck, threading\n\
                  def work():\n    for i in range(2000): rankdeck.report(8, returns=1.0)\n\
                  threads = [threading.Thread(target=work) for _ in range(8)]\n\
                  [t.start() for t in threads]\n[t.join() for t in threads]\n";
        let (events, output) = run_script(0, script);
        assert!(output.status.success());
        let last = *counters(&events).last().unwrap();
        assert_eq!((last.train_iter, last.episodes), (16_000, 16_000));
    }

    #[test]
    fn should_stop_is_set_by_a_signal_and_the_second_ends() {
        let script = "import os, rankdeck, signal\n\
                  print(rankdeck.should_stop())\nos.kill(os.getpid(), signal.SIGTERM)\n\
                  print(rankdeck.should_stop(), flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\n\
                  print('not reached', flush=True)\n";
        let (_, output) = run_script(0, script);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(
            (output.status.signal(), text(&output.stdout).as_str()),
            (Some(libc::SIGTERM), "False\nTrue\n")
        );

        let own = "import os, rankdeck, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('own'))\n\
               rankdeck.should_stop()\nfor _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\n\
               print(rankdeck.should_stop())\n";
        let (_, output) = run_script(0, own);
        assert_eq!(
            text(&output.stdout),
            "own\nown\nTrue\n",
            "a handler of the program's own is called as ever"
        );
    }

    #[test]
    fn refusal_of_the_agent_is_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("events.sock")).unwrap();
        let script = "import rankdeck, time\nrankdeck.report(1)\n\
                  for i in range(2, 200):\n    time.sleep(0.02)\n    rankdeck.report(i)\n";
        let child = python(folder.path(), 0, script).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"{\"kind\":\"refused\",\"line\":3,\"reason\":\"no such thing\"}\nrubbish\n")
            .unwrap();
        let events = lines(stream);
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stderr), "rankdeck: event refused: no such thing\n");
        assert!(counters(&events).len() > 3);
    }

    #[test]
    fn new_connection_follows_a_broken_one() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("events.sock")).unwrap();
        let script = "import rankdeck, time\n\
                  for i in range(1, 400):\n    time.sleep(0.01)\n    rankdeck.report(i)\n";
        let mut child = python(folder.path(), 0, script).stderr(Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        let events = lines(stream);
        assert!(child.wait().unwrap().success());
        assert!(matches!(events[0], RankEvent::Hello { .. }), "{events:?}");
        assert_eq!(counters(&events).last().unwrap().env_step, 399);
    }

    #[test]
    fn outside_rankdeck_nothing_happens() {
        let folder = tempfile::tempdir().unwrap();
        let script = "import rankdeck, signal, sys, threading\n\
                  rankdeck.report(1, loss='x')\nrankdeck.eval([])\nrankdeck.checkpoint('x')\n\
                  rankdeck.histogram('h', [])\nrankdeck.image('p', b'')\n\
                  print(rankdeck.should_stop(), threading.active_count(), signal.getsignal(signal.SIGTERM).name)\n";
        let mut command = python(folder.path(), 0, script);
        command.env_remove("RANKDECK_EVENTS").env_remove("RANKDECK_RANK");
        let output = command.output().unwrap();
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("False 1 SIG_DFL\n", ""));
    }

    fn histograms(events: &[RankEvent]) -> Vec<(&str, Vec<f64>, Vec<f64>)> {
        let histogram = events.iter().filter_map(|event| match event {
            RankEvent::Histogram(one) => Some((one.name.as_str(), one.edges.clone(), one.counts.clone())),
            _ => None,
        });
        histogram.collect()
    }

    #[test]
    fn histograms_are_made_of_numbers_and_of_bins() {
        let script = "import rankdeck\n\
                  rankdeck.report(10)\n\
                  rankdeck.histogram('whole', [1, 2, 2, 4.0])\n\
                  rankdeck.histogram('deep', [[0.5, float('nan')], [1.5]])\n\
                  rankdeck.histogram('bins', ([0, 1, 2], [3, 4]), env_step=7, train_iter=3)\n\
                  rankdeck.histogram('turned', ([3, 4], [0, 1, 2]))\n\
                  rankdeck.histogram('many', (list(range(1001)), [1] * 1000))\n\
                  rankdeck.histogram('one', [5.5] * 3)\n\
                  rankdeck.histogram('far', [1e20, 1e20 + 1e5])\n";
        let (events, output) = run_script(0, script);
        assert!(output.stderr.is_empty(), "{output:?}");
        let all = histograms(&events);
        assert_eq!(all[0], ("whole", vec![0.5, 1.5, 2.5, 3.5, 4.5], vec![1.0, 2.0, 0.0, 1.0]));
        for (name, edges, counts) in &all {
            let bins = rankdeck_proto::media::Histogram { edges: edges.clone(), counts: counts.clone() };
            assert_eq!(bins.check(), Ok(()), "{name}");
        }
        let sums: Vec<f64> = all.iter().map(|one| one.2.iter().sum::<f64>().round()).collect();
        assert_eq!(sums, [4.0, 2.0, 7.0, 7.0, 1000.0, 3.0, 2.0]);
        assert_eq!((all[2].1.len(), &all[2].1, all[4].2.len()), (3, &all[3].1, 64));
        let steps = events.iter().filter_map(|event| match event {
            RankEvent::Histogram(one) => Some((one.env_step, one.train_iter)),
            _ => None,
        });
        assert_eq!(
            steps.take(3).collect::<Vec<_>>(),
            [(20, 1), (20, 1), (7, 3)],
            "those of the report, or given"
        );
    }

    #[test]
    fn arrays_of_numpy_and_tensors_are_taken_as_they_are() {
        let Some(python) = rankdeck_testkit::python("numpy, torch") else { return };
        let folder = tempfile::tempdir().unwrap();
        let script = "import rankdeck, sys, numpy as np\n\
                  exact = rankdeck._bins(np.arange(10000.0) / 100)\n\
                  assert sum(exact['counts']) == 10000 and len(exact['counts']) == 64, exact\n\
                  assert rankdeck._bins(np.array([True, False]))['counts'] == [1, 1]\n\
                  counts, edges = np.histogram(np.random.randn(1000), bins=200)\n\
                  assert round(sum(rankdeck._bins((counts, edges))['counts'])) == 1000\n\
                  assert rankdeck._rows(np.zeros((4, 6, 3), 'uint8')) == ([bytes(18)] * 4, 3)\n\
                  assert rankdeck._rows(np.ones((4, 6)) * 0.5) == ([bytes([127] * 6)] * 4, 1)\n\
                  import torch\n\
                  assert sum(rankdeck._bins(torch.randn(9, 9).bfloat16().requires_grad_())['counts']) == 81\n\
                  assert rankdeck._rows(torch.ones(3, 4, 6)) == ([bytes([255] * 18)] * 4, 3)\n\
                  print('taken')\n";
        std::fs::write(folder.path().join("rankdeck.py"), SOURCE).unwrap();
        let output = Command::new(python).args(["-c", script]).current_dir(folder.path()).output().unwrap();
        assert_eq!(text(&output.stdout), "taken\n", "{output:?}");
    }

    #[test]
    fn images_are_files_paths_or_rows_within_the_limit() {
        let script = "import rankdeck\n\
                  rankdeck.image('grey', [[0, 255], [128, 300]])\n\
                  file = rankdeck._png([bytes([1, 2, 3] * 5)] * 4, 3)\n\
                  open('seen.png', 'wb').write(file)\n\
                  rankdeck.image('bytes', file)\nrankdeck.image('path', 'seen.png', env_step=5)\n\
                  rankdeck.image('gif', b'GIF89a\\x05\\x00\\x04\\x00')\n\
                  import random\nnoise = random.Random(1)\n\
                  rankdeck.image('large', [[noise.randrange(256) for _ in range(1400)] for _ in range(600)])\n\
                  rankdeck.image('file', b'\\x89PNG\\r\\n\\x1a\\n' + bytes(300000))\n\
                  rankdeck.image('text', b'text')\nrankdeck.image('none', 'absent.png')\nrankdeck.image('empty', [])\n\
                  rankdeck.image('odd', [[1, 2], [3]])\nrankdeck.image('two', [[[1, 2]]])\n\
                  print(rankdeck.lost())\n";
        let (events, output) = run_script(0, script);
        let pictures: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                RankEvent::Image(one) => {
                    Some((one.name.as_str(), rankdeck_proto::media::decoded(&one.data).unwrap().0))
                }
                _ => None,
            })
            .map(|(name, head)| (name, head.width, head.height))
            .collect();
        let expected = [("grey", 2, 2), ("bytes", 5, 4), ("path", 5, 4), ("gif", 5, 4), ("large", 700, 300)];
        assert_eq!(pictures, expected, "{output:?}");
        assert_eq!(text(&output.stdout), "6\n");
        let errors = text(&output.stderr);
        assert!(errors.contains("image: ValueError: the image exceeds 262144 bytes"), "{errors}");
        assert!(errors.contains("No such file") && errors.contains("expected a PNG or GIF"), "{errors}");
    }

    /// CLIENT-5
    #[test]
    fn client_5_many_histograms_cost_little_and_the_rest_is_counted() {
        let script = "import rankdeck, time\n\
                  begun = time.monotonic()\n\
                  for i in range(20000):\n    rankdeck.histogram('w', [i, i + 0.5], env_step=i)\n    \
                  rankdeck.image('p', [[i % 256]])\n\
                  for i in range(100): rankdeck.histogram('name %d' % i, [1.5, i], env_step=20000)\n\
                  took = time.monotonic() - begun\n\
                  time.sleep(1.2)\n\
                  rankdeck.histogram('w', [1, 2], env_step=20001)\n";
        let (events, output) = run_script(0, script);
        assert!(output.status.success(), "{output:?}");
        let of = |name: &str| histograms(&events).iter().filter(|one| one.0 == name).count() as u64;
        let skipped: u64 = events
            .iter()
            .map(|event| match event {
                RankEvent::Histogram(one) => one.skipped,
                RankEvent::Image(one) => one.skipped,
                _ => 0,
            })
            .sum();
        let pictures = events.iter().filter(|event| matches!(event, RankEvent::Image(_))).count() as u64;
        assert!((8..=200).contains(&of("w")) && (4..=100).contains(&pictures), "{} {pictures}", of("w"));
        let names = histograms(&events).iter().filter(|one| one.0.starts_with("name")).count() as u64;
        assert_eq!(names, 46, "48 names in all");
        assert_eq!(of("w") + pictures + names + skipped, 40_101, "every one is sent or counted");
        assert!(text(&output.stderr).contains("too many names"), "{output:?}");
        let last = events.iter().rev().find_map(|event| match event {
            RankEvent::Histogram(one) => Some(one.env_step),
            _ => None,
        });
        assert_eq!(last, Some(20_001));
    }

    #[test]
    fn program_gets_its_seed_and_0_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let script = "import rankdeck\nprint(rankdeck.seed(), rankdeck.seed(per_rank=True))\n";
        for (seed, expected) in [(Some("7"), "7 91\n"), (None, "0 91\n"), (Some("x"), "0 91\n")] {
            let mut command = python(folder.path(), 1, script);
            command.env("RANKDECK_RANK_SEED", "91");
            match seed {
                Some(seed) => command.env("RANKDECK_SEED", seed),
                None => command.env_remove("RANKDECK_SEED"),
            };
            let output = command.output().unwrap();
            assert_eq!(
                (output.status.code(), text(&output.stdout).as_str()),
                (Some(0), expected),
                "{output:?}"
            );
        }
    }
}
