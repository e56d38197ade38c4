//! Decides, before a launch, which variables the ranks of a user's program get: torchrun's for a single rank
//! (PLAIN-1), and the secret that ranks share. The plan then holds the decision, so that restarts keep it.

use rankdeck_config::HostsSource;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::promise::{ProgramFacts, ProgramName, SourceState};

/// Decides what the draft leaves open; returns why a single rank has torchrun's variables, or lacks them. `None` for
/// the built-in trainer.
pub(crate) fn decide(
    draft: &mut PlanDraft,
    hosts: &HostsSource,
    facts: &ProgramFacts,
) -> Option<&'static str> {
    let launch = &mut draft.experiment.launch;
    if launch.command.is_empty() {
        return None;
    }
    if launch.group_secret.is_none() {
        launch.group_secret = Some(facts.names.contains(&ProgramName::Secret));
    }
    let (is_set, why) = match launch.rank_variables {
        Some(is_set) => (is_set, "`launch.rank_variables`"),
        None if launch.slurm_env => (true, "`launch.slurm_env`"),
        None if hosts.is_file() => (true, "there is a hosts file"),
        None if hosts.has_nproc() => (true, "`--nproc` is given"),
        None if facts.names.contains(&ProgramName::Group) => (true, "the program names them"),
        None if facts.source == SourceState::Absent => (true, "the script is not on this machine"),
        None => (false, "the program does not name them"),
    };
    launch.rank_variables = Some(is_set);
    Some(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::contract;
    use rankdeck_config::{ExperimentSource, load_draft};
    use rankdeck_types::ids::RunId;
    use std::path::Path;

    /// What is decided about a script on these hosts.
    fn decided(script: &str, launch: &str, hosts: &HostsSource) -> (Option<bool>, Option<bool>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(folder.path().join("t.py"), script).unwrap();
        let text = format!("[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"t.py\"]\n{launch}");
        std::fs::write(&path, text).unwrap();
        let source = ExperimentSource::File(path);
        let mut draft = load_draft(hosts, &source, &[], |_| RunId("a-1".into())).unwrap();
        let facts = contract::facts(&draft.experiment, &source, &draft.hosts);
        decide(&mut draft, hosts, &facts).unwrap();
        (draft.experiment.launch.rank_variables, draft.experiment.launch.group_secret)
    }

    #[test]
    fn plain_1_single_rank_is_plain_unless_asked() {
        let of = |script: &str, launch: &str, hosts: &HostsSource| decided(script, launch, hosts).0;
        let here = HostsSource::Here;
        assert_eq!(of("import gym\nrank = 1\n", "", &here), Some(false));
        assert_eq!(of("import gym\n", "rank_variables = true\n", &here), Some(true));
        assert_eq!(of("import gym\n", "slurm_env = true\n", &here), Some(true));
        let ranks = HostsSource::Ranks(Box::new(HostsSource::Here), 1);
        assert_eq!(of("import gym\n", "", &ranks), Some(true));
        assert_eq!(of("import gym\n", "rank_variables = false\n", &ranks), Some(false));
        assert_eq!(of("import gym\n", "", &HostsSource::Named(vec!["local".into()])), Some(false));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts.toml");
        std::fs::write(&file, "[[host]]\nname = \"a\"\ntransport = \"local\"\n").unwrap();
        assert_eq!(of("import gym\n", "", &HostsSource::File(file)), Some(true));
        for script in [
            "import os\nrank = int(os.environ[\"RANK\"])\n",
            "x = os.environ.get('LOCAL_RANK', 0)\n",
            "dist.init_process_group('gloo')\n",
            "subprocess.run('echo $RANK', shell=True)\n",
        ] {
            assert_eq!(of(script, "", &here), Some(true), "{script}");
        }
        for script in ["# LOCAL_RANK\n", "MY_WORLD_SIZE = RANKDECK_RANK = 1\n", "print('RANKS')\n"] {
            assert_eq!(of(script, "", &here), Some(false), "{script}");
        }
    }

    #[test]
    fn script_that_is_not_here_is_not_plain() {
        let names = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            let source = ExperimentSource::Command { words, ships: false };
            let mut draft = load_draft(&HostsSource::Here, &source, &[], |_| RunId("a-1".into())).unwrap();
            let facts = contract::facts(&draft.experiment, &source, &draft.hosts);
            decide(&mut draft, &HostsSource::Here, &facts);
            draft.experiment.launch.rank_variables
        };
        assert!(!Path::new("nowhere.py").exists());
        assert_eq!(names(&["python3", "nowhere.py"]), Some(true));
        assert_eq!(names(&["puffer", "train"]), Some(false));
        assert_eq!(names(&["sh", "-c", "echo $RANK"]), Some(true));
    }

    #[test]
    fn secret_is_for_programs_that_name_it() {
        let of = |script: &str| decided(script, "", &HostsSource::Here).1;
        assert_eq!(of("os.environ['RANKDECK_SECRET']\n"), Some(true));
        assert_eq!(of("import gym\n"), Some(false));
    }
}
