//! A cache in which other users can create files and links.

use crate::support::{Bench, rankdeck};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

/// TRUST-1: claims of names of runs are a day old at most, and a link instead of their directory would remove
/// files of the user.
#[test]
fn trust_1_cache_of_others_is_not_used() {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    let [cache, own] = ["cache", "own"].map(|name| bench.path().join(name));
    [&cache, &own].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let old = std::fs::File::create(own.join("old")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(10 * 86_400)).unwrap();
    symlink(&own, cache.join("names")).unwrap();
    std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o777)).unwrap();
    let file = bench.write("e.toml", "[run]\nname = \"e\"\n[launch]\ncommand = [\"true\"]\n");
    let mut command = rankdeck();
    command.args(["run", file.to_str().unwrap(), "--headless"]).current_dir(bench.path());
    let output = command.env("RANKDECK_CACHE", &cache).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let names: Vec<_> = std::fs::read_dir(&own).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["old"]);
}

/// TRUST-1: a directory that others can change takes no files of a host, and nothing is removed from it.
#[test]
fn trust_1_runs_of_others_are_not_written_or_removed() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let file = bench.write("e.toml", "[run]\nname = \"e\"\n[launch]\ncommand = [\"true\"]\n");
    let here = bench.path().join("here");
    std::fs::create_dir(&here).unwrap();
    let call = |args: &[&str]| {
        let mut command = rankdeck();
        command.args(args).args(["--hosts", hosts.to_str().unwrap()]).current_dir(&here);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = call(&["run", file.to_str().unwrap(), "--headless"]);
    assert_eq!(code, Some(0), "{stderr}");
    let run = std::fs::read_dir(here.join("runs")).unwrap().next().unwrap().unwrap();
    let run = run.file_name().into_string().unwrap();
    let own = here.join("runs").join(&run);
    std::fs::set_permissions(&here, PermissionsExt::from_mode(0o777)).unwrap();
    for args in [&["fetch", &run][..], &["tensorboard", &run]] {
        let (code, stderr) = call(args);
        assert!(code == Some(2) && stderr.contains(&here.display().to_string()), "{args:?}: {stderr}");
    }
    assert!(!own.join("hosts").exists());
    let (code, stderr) = call(&["rm", &run, "--yes"]);
    assert!(code == Some(0) && stderr.contains(&here.display().to_string()), "{stderr}");
    assert!(own.join("console").exists());
}
