//! RAS: every kind of answer that versions of NCCL give, and those of a server in trouble (P31).

use super::*;
use std::net::TcpListener;
use std::thread::JoinHandle;

const MISSING: &str = r#"{
  "nccl_version": "2.28.9",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xa1",
      "size": 3,
      "ranks": [
        { "rank": 0, "host": "a", "pid": 10, "status": { "init_state": 0, "async_error": 0, "abort_flag": false },
          "collective_counts": { "AllReduce": 46, "Broadcast": 2 } },
        { "rank": 2, "host": "b", "pid": 12, "status": { "init_state": 0, "async_error": 3, "abort_flag": true },
          "collective_counts": { "AllReduce": 45, "Broadcast": 2 } }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "a",
          "pid": 11,
          "cuda_dev": 1,
          "nvml_dev": 1
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": { "timeouts_count": 0 }
}
"#;

/// A server that plays connections one after the other: for each, (what it expects, what it answers) in
/// order, then it hangs up.
fn server(script: Vec<Vec<(&'static str, &'static str)>>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        for connection in script {
            let (mut stream, _) = listener.accept().unwrap();
            for (expected, answer) in connection {
                let mut line = Vec::new();
                let mut byte = [0];
                while line.last() != Some(&b'\n') && stream.read(&mut byte).unwrap() == 1 {
                    line.push(byte[0]);
                }
                assert_eq!(String::from_utf8(line).unwrap().trim(), expected);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    (address, thread)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn json_is_asked_for_and_the_broken_one_of_2_28_is_read() {
    let (address, thread) =
        server(vec![vec![("SET FORMAT json", "OK\n"), ("TIMEOUT 1", "OK\n"), ("STATUS", MISSING)]]);
    let report = ask(&address, soon()).unwrap();
    thread.join().unwrap();
    assert_eq!(report.version, "2.28.9");
    let lines = report.lines_about(0);
    assert!(lines.iter().any(|line| line.contains("rank 1 (pid 11 on a) is unresponsive")), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.contains("rank 2: init state 0, async error 3, aborted")),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| line.contains("AllReduce: 46 launched, but rank 2 has launched 45")),
        "{lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains("Broadcast: 2 launched, but")), "{lines:?}");
}

#[test]
fn sound_json_is_not_touched() {
    let sound = MISSING.replace("\"nvml_dev\": 1\n", "\"nvml_dev\": 1,\n");
    assert_eq!(parse(&sound).unwrap(), parse(MISSING).unwrap());
    assert_eq!(mended(&sound).replace(char::is_whitespace, ""), sound.replace(char::is_whitespace, ""));
}

#[test]
fn a_version_without_json_is_asked_for_text() {
    let text = "NCCL version 2.26.2 compiled with CUDA 12.8\nJob summary\n\nOK\n";
    let script = vec![vec![("SET FORMAT json", "ERROR: unknown command\n")], vec![("VERBOSE STATUS", text)]];
    let (address, thread) = server(script);
    let report = ask(&address, soon()).unwrap();
    thread.join().unwrap();
    assert_eq!((report.version.as_str(), report.communicators.len()), ("2.26.2", 0));
    assert!(report.lines_about(0).contains(&"Job summary".to_owned()));
}

#[test]
fn a_slow_server_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let error =
        ask(&listener.local_addr().unwrap().to_string(), begun + Duration::from_millis(200)).unwrap_err();
    assert_eq!(error, NoReport::from("no answer in time"));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn where_nobody_listens_there_is_no_report_and_no_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert_eq!(ask(&address, soon()), Err(NoReport::NobodyListens));
    assert_eq!(ask_any(&[address.clone(), address.clone()], soon()), Ok(None));
    // One that hangs up is there.
    let (other, thread) = server(vec![vec![]]);
    assert!(ask_any(&[other, address], soon()).is_err());
    thread.join().unwrap();
}

#[test]
fn a_server_that_hangs_up_or_talks_nonsense_is_an_error() {
    let (address, thread) = server(vec![vec![]]);
    assert!(ask(&address, soon()).is_err());
    thread.join().unwrap();
    assert!(parse("").is_err());
    assert!(parse("{\"communicators\": 5}").is_err());
    assert_eq!(parse("ERROR: busy\n").unwrap_err(), "busy");
}

#[test]
fn a_monitor_stream_may_be_cut_anywhere() {
    let text =
        b"LIFECYCLE: PEER_NEW 10.0.0.1:5\nTRACE: PEER_SEND_STUCK 10.0.0.2:6\nnoise\nPEER_TIMEOUT_DEAD x\n";
    for step in 1..text.len() {
        let mut monitor = Monitor::default();
        let events: Vec<Event> = text.chunks(step).flat_map(|chunk| monitor.push(chunk)).collect();
        let names: Vec<(&str, bool)> = events.iter().map(|event| (event.name.as_str(), event.bad)).collect();
        assert_eq!(names, [("PEER_NEW", false), ("PEER_SEND_STUCK", true), ("PEER_TIMEOUT_DEAD", true)]);
    }
    let mut monitor = Monitor::default();
    for _ in 0..10 {
        assert_eq!(monitor.push(&[b'x'; 1000]), []);
    }
    assert!(monitor.ahead.len() <= LINE && monitor.dropped > 0);
}

/// NCCL gives -1 for a process that it does not know; a rank that does not answer is not the only one to ask.
#[test]
fn an_unknown_process_and_a_silent_rank_cost_no_report() {
    let unknown = MISSING.replace("\"pid\": 11,", "\"pid\": -1,");
    let unknown = parse(&unknown).unwrap();
    assert_eq!(unknown.communicators[0].missing_ranks[0].pid, -1);
    let lines = unknown.lines_about(0);
    assert!(lines.iter().any(|line| line.contains("rank 1 (on a) is unresponsive")), "{lines:?}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = vec![vec![("SET FORMAT json", "OK\n"), ("TIMEOUT 1", "OK\n"), ("STATUS", MISSING)]];
    let (address, thread) = server(script);
    let deadline = Instant::now() + Duration::from_secs(4);
    let report = ask_any(&[silent.local_addr().unwrap().to_string(), address], deadline).unwrap().unwrap();
    assert_eq!(report.version, "2.28.9");
    thread.join().unwrap();
}

/// A report waits for ranks that are missing, longer than half a look: who has greeted is waited for.
#[test]
fn one_that_greets_has_all_the_time_that_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = [0; 64];
        for answer in ["OK\n", "OK\n", MISSING] {
            assert!(stream.read(&mut got).unwrap() > 0);
            if answer == MISSING {
                // Three quarters of the time that there is.
                let _ = end.recv_timeout(Duration::from_millis(3000));
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let report =
        ask_any(&[address, refusing], Instant::now() + Duration::from_millis(4000)).unwrap().unwrap();
    assert_eq!(report.communicators[0].missing_ranks[0].rank, 1);
    drop(ended);
    thread.join().unwrap();
}
