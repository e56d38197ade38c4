//! docs/runs.md has the table of promises; every promise that is kept has a test, and every other one a reason.

use super::generated::topic;
use super::{check_parts, files, table};
use rankdeck_types::promise::{Promise, PromiseCell, Runner};

const RUNNERS: [Runner; 3] = [Runner::Builtin, Runner::Hooked, Runner::Other];

/// The test of each promise, for the built-in trainer, a Python program with the hook, and any other program. Empty: the
/// promise is not kept there.
const TESTS: [(Promise, [&str; 3]); 12] = [
    (
        Promise::Identity,
        [
            "trainer_learns_across_hosts",
            "local_rank_as_rank_over_hosts_is_named",
            "shell_program_gets_its_identity_and_the_seed",
        ],
    ),
    (
        Promise::Seed,
        [
            "trials_of_the_trainer_differ_by_seed",
            "seed_reaches_the_script_or_is_refused",
            "shell_program_gets_its_identity_and_the_seed",
        ],
    ),
    (
        Promise::Steps,
        [
            "srun_torchrun_and_spawn_give_same_totals",
            "client_reports_totals_evaluations_and_checkpoints",
            "output_is_recognized_without_a_declaration",
        ],
    ),
    (
        Promise::Evaluations,
        [
            "running_evaluation_is_shown_live",
            "client_reports_totals_evaluations_and_checkpoints",
            "output_is_recognized_without_a_declaration",
        ],
    ),
    (
        Promise::Metrics,
        [
            "every_iteration_is_in_metrics_csv_and_tensorboard",
            "event_files_become_metrics",
            "files_that_a_rank_holds_open_become_metrics",
        ],
    ),
    (
        Promise::Checkpoints,
        [
            "generations_keep_earlier_checkpoints",
            "program_resumes_from_its_reported_checkpoint",
            "work_of_a_script_is_decided_by_its_files",
        ],
    ),
    (
        Promise::Stop,
        [
            "sigterm_to_group_stops_at_iteration_end",
            "ask_4_interrupted_program_saves_before_its_workers_end",
            "translating_trap_gets_the_signal_alone",
        ],
    ),
    (
        Promise::Resume,
        [
            "restart_resumes_a_finished_training",
            "program_resumes_from_its_reported_checkpoint",
            "shell_program_starts_from_a_checkpoint_or_is_refused",
        ],
    ),
    (
        Promise::End,
        [
            "python_2_exception_is_reported_and_ends_all_ranks",
            "hook_5_exception_ends_the_rank_for_any_exit_code",
            "exits_are_decoded_and_the_stop_is_verified",
        ],
    ),
    (
        Promise::Results,
        [
            "checkpoint_is_evaluated_and_exported",
            "fetch_copies_files_once_and_rm_removes_the_run",
            "shell_program_leaves_files_but_no_policy",
        ],
    ),
    (Promise::Stuck, ["deadlock_is_located_by_file_and_line", "real_gloo_ranks_show_who_is_behind", ""]),
    (Promise::Playback, ["checkpoint_is_evaluated_and_exported", "", ""]),
];

#[test]
fn every_promise_has_a_test_or_a_reason() {
    let sources: String =
        files(&["src", "tests"], ".rs").iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert_eq!(TESTS.map(|(promise, _)| promise), Promise::ALL);
    for (promise, tests) in TESTS {
        for (runner, test) in RUNNERS.into_iter().zip(tests) {
            match promise.cell(runner) {
                PromiseCell::Yes(_) => {
                    let is_there = is_test(&sources, test);
                    assert!(!test.is_empty() && is_there, "{promise:?} {runner:?}: no test `{test}`");
                }
                PromiseCell::No(why) => assert!(test.is_empty() && !why.is_empty(), "{promise:?} {runner:?}"),
            }
        }
    }
}

/// Whether a function of this name is a test that runs.
fn is_test(sources: &str, name: &str) -> bool {
    let Some((before, _)) = sources.split_once(&format!("fn {name}()")) else { return false };
    let attributes: Vec<&str> =
        before.rsplit('\n').skip(1).map(str::trim).take_while(|line| line.starts_with("#[")).collect();
    attributes.iter().any(|line| line.contains("test"))
        && !attributes.iter().any(|line| line.contains("ignore"))
}

#[test]
fn only_tests_that_run_keep_a_promise() {
    let source = "#[test]\nfn a() {}\n    #[tokio::test]\n    async fn b() {}\n\
                  #[test]\n#[ignore]\nfn c() {}\nfn d() {}\n";
    assert_eq!(
        ["a", "b", "c", "d", "e"].map(|name| is_test(source, name)),
        [true, true, false, false, false]
    );
}

fn cell(promise: Promise, runner: Runner) -> String {
    match promise.cell(runner) {
        PromiseCell::Yes("") => "yes".to_owned(),
        PromiseCell::Yes(how) => format!("yes: {how}"),
        PromiseCell::No(why) => format!("no: {why}"),
    }
}

#[test]
fn runs_page_has_the_promises() {
    let head = ["promise", "built-in trainer", "Python with the hook", "any program"];
    let row = |promise: Promise| {
        let name = format!("**{}**: {}", promise.name(), promise.meaning());
        let [builtin, hooked, other] = RUNNERS.map(|runner| cell(promise, runner));
        [name, builtin, hooked, other]
    };
    let promises = table(head, Promise::ALL.map(row));
    let topic = topic("promises");
    let (_, needs) = topic.split_once("Commands and options that need a promise\n\n").unwrap();
    let needs = format!("```text\n{needs}");
    check_parts("docs/runs.md", &[("promises", promises), ("needs", needs)]);
}
