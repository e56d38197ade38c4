use super::*;
use rankdeck_proto::message::{Evaluation, PageSample, RankSample, StopMode};
use rankdeck_types::ids::Rank;

fn calls(on: &[&str]) -> Calls {
    let mut calls = Calls::new(RunId("ppo-1".into()), "gpu-a".into(), Helpers::default());
    let on = on.iter().map(|on| (*on).to_owned()).collect();
    calls.begin(Some(AwayNotices { on, webhook: String::new(), command: vec!["true".into()] }));
    calls
}

fn exited(rank: u32, exit: Exit, stopping: bool) -> RecordEvent {
    let last_lines = vec!["out of memory".into()];
    RecordEvent::RankExited {
        rank: Rank(rank),
        pid: 7,
        exit,
        last_lines,
        stopping,
        ago_ms: 0,
        with_agent: false,
    }
}

fn stopped() -> RecordEvent {
    RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 3 }
}

fn told(calls: &Calls) -> Vec<(&'static str, String)> {
    calls.waiting.iter().map(|call| (call.occasion, call.text.clone())).collect()
}

#[test]
fn the_first_failure_is_told_and_what_follows_from_it_is_not() {
    let mut calls = calls(&[]);
    let killed = Exit::Signal { signal: libc::SIGKILL, out_of_memory: false };
    calls.see(&exited(3, killed.clone(), false));
    calls.see(&exited(4, killed, false));
    calls.see(&stopped());
    let told = told(&calls);
    assert_eq!(told.len(), 1);
    assert!(
        told[0].1.starts_with("failed: rank 3 on gpu-a") && told[0].1.ends_with("out of memory"),
        "{told:?}"
    );
}

#[test]
fn an_end_that_nobody_ordered_is_one_and_one_that_was_ordered_says_by_whom() {
    let mut calls = calls(&[]);
    calls.see(&exited(0, Exit::Code { code: 0 }, false));
    calls.see(&stopped());
    assert!(told(&calls)[0].1.starts_with("finished"));
    calls.begin(None);
    calls.waiting.clear();
    calls.see(&RecordEvent::StopOrdered { mode: StopMode::Clean, by: "lease".into() });
    calls.see(&exited(0, Exit::Code { code: 1 }, true));
    calls.see(&stopped());
    assert!(told(&calls)[0].1.starts_with("stopped by lease"), "{:?}", told(&calls));
}

#[test]
fn a_better_evaluation_is_told_where_it_is_wanted() {
    let eval = |return_mean| RecordEvent::Rank {
        rank: Rank(0),
        said: RankEvent::Eval(Evaluation { return_mean, ..Evaluation::default() }),
    };
    let mut wanted = calls(&["best"]);
    [1.0, 0.5, f64::NAN, 2.0, 2.0].iter().for_each(|mean| wanted.see(&eval(*mean)));
    assert_eq!(told(&wanted).len(), 1);
    let mut other = calls(&["end"]);
    [1.0, 2.0].iter().for_each(|mean| other.see(&eval(*mean)));
    assert!(told(&other).is_empty());
}

#[test]
fn ranks_that_stand_still_are_told_once_until_they_get_on() {
    let mut calls = calls(&[]);
    let (begun, within) = (Instant::now(), Duration::from_secs(600));
    let rank = |env_step| RankSample {
        rank: Rank(0),
        pid: 7,
        state: 'R',
        cpu_percent: 0.0,
        rss: 0,
        children: 0,
        wchan: String::new(),
        gpu: None,
        gpu_memory: None,
        gpu_share: None,
        page: Some(PageSample { env_step, ..PageSample::default() }),
        signals: Default::default(),
    };
    let sample = |env_step| HostSample { ranks: vec![rank(env_step)], ..HostSample::default() };
    let mut at = |seconds, step| calls.look(&sample(step), begun + Duration::from_secs(seconds), within);
    at(0, 1);
    at(599, 1);
    at(600, 1);
    at(900, 1);
    at(901, 2);
    at(1400, 2);
    at(1501, 2);
    let told = told(&calls);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].0 == "verdict" && told[0].1.contains("no rank on gpu-a has got on for 10m"), "{told:?}");
    let mut blind = super::tests::calls(&[]);
    for seconds in [0, 9000] {
        blind.look(&HostSample::default(), begun + Duration::from_secs(seconds), within);
    }
    assert!(blind.waiting.is_empty(), "nobody tells how far it is");
}

#[tokio::test]
async fn calls_1_nobody_is_called_while_a_console_looks_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("told");
    let script = format!("cat > {}.part && mv {}.part {}", file.display(), file.display(), file.display());
    let mut calls = calls(&[]);
    calls.away.as_mut().unwrap().command = vec!["sh".into(), "-c".into(), script];
    calls.see(&stopped());
    assert!(calls.make(true).is_empty() && calls.waiting.is_empty());
    calls.see(&stopped());
    assert!(calls.make(false).is_empty());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !file.exists() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = std::fs::read_to_string(&file).unwrap();
    assert!(told.contains("\"run\":\"ppo-1\"") && told.contains("\"from\":\"gpu-a\""), "{told}");
    assert!(!format!("{calls:?}").contains("part"), "neither command nor address is in any log");
}

#[test]
fn calls_2_a_command_that_hangs_is_killed_and_one_that_fails_says_why() {
    let helpers = Helpers::default();
    let script = |text: &str| vec!["sh".to_owned(), "-c".to_owned(), text.to_owned()];
    let hangs = run(&script("read never </dev/zero"), "", Duration::from_millis(50), &helpers);
    assert!(hangs.unwrap_err().contains("killed"));
    let fails = run(&script("echo nobody there >&2"), "{}", WITHIN, &helpers);
    assert_eq!(fails, Err("nobody there".to_owned()));
    assert!(run(&["/nowhere/at/all".to_owned()], "", WITHIN, &helpers).is_err());
    assert_eq!(run(&script("cat >/dev/null"), "{}", WITHIN, &helpers), Ok(()));
    assert!(helpers.pids().is_empty());
}

#[tokio::test]
async fn calls_2_what_finds_no_room_is_told() {
    let mut calls = calls(&["end"]);
    calls.helpers.lock().extend(1..=AT_ONCE as u32);
    calls.see(&stopped());
    let said = calls.make(false);
    assert!(said.iter().any(|text| text.contains("1 found no room")), "{said:?}");
}
