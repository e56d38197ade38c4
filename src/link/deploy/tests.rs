//! What a look at a host finds, and which hosts and caches are refused.

use super::*;
use crate::elf::Needs;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::process::Command;

fn package(folder: &Path, trainer: bool) -> Package {
    let file = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        Image::read(&folder.join(name)).unwrap()
    };
    Package { agent: file("a", "agent"), trainer: trainer.then(|| file("t", "trainer")) }
}

fn look_at(package: &Package, cache: &Path) -> String {
    let script = look(package, &Script::new().run("echo \"remote $A\"")).command();
    let output = Command::new("/bin/sh").args(["-c", &script]).env("RANKDECK_CACHE", cache).output().unwrap();
    format!("Welcome!\n{}", String::from_utf8(output.stdout).unwrap())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn put(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
    set_mode(&folder.join(name), 0o755);
}

#[test]
fn deploy_1_looking_finds_what_is_there_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path(), true);
    let cache = folder.path().join("cache dir");
    let right = |text: &str| {
        let found = parse(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(found.distrust, None, "{text}");
        found.right
    };
    assert_eq!(right(&look_at(&package, &cache)), [false; 3]);
    let own = cache.join(package.folder());
    assert!(!cache.exists(), "looking makes nothing");
    DirBuilder::new().mode(0o700).recursive(true).create(&own).unwrap();
    fs::write(own.join(AGENT), "agent").unwrap();
    assert_eq!(right(&look_at(&package, &cache)), [false; 3], "not executable yet");
    put(&own, AGENT, "agent");
    let text = look_at(&package, &cache);
    let found = parse(&text).unwrap();
    assert_eq!((found.right, Path::new(&found.cache)), ([true, true, false], cache.as_path()));
    assert!(suits("node1", &package, &found).is_ok(), "{found:?}");
    assert!(text.ends_with("RANKDECK-MISSING\n"), "the trainer is missing: {text}");
    put(&own, TRAINER, "trainer");
    let text = look_at(&package, &cache);
    assert_eq!(right(&text), [true; 3]);
    let end = format!("RANKDECK-PRESENT\nremote {}\n", own.join(AGENT).display());
    assert!(text.ends_with(&end), "{text}");
    for other in ["cut", "AGENT", "agent "] {
        put(&own, AGENT, other);
        assert!(look_at(&package, &cache).ends_with("RANKDECK-MISSING\n"), "{other} is another content");
    }
    put(&own, AGENT, "agent");
    set_mode(&own.join(AGENT), 0o777);
    assert_eq!(right(&look_at(&package, &cache)), [false, false, true], "anybody could write it");
}

#[test]
fn deploy_1_a_cache_that_others_can_write_is_refused_whatever_lies_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path(), false);
    let cache = folder.path().join("above/cache");
    DirBuilder::new().mode(0o700).recursive(true).create(cache.join(package.folder())).unwrap();
    let own = cache.join(package.folder());
    put(&own, AGENT, "agent");
    let refused = |what: &str| {
        let text = look_at(&package, &cache);
        assert!(text.ends_with("RANKDECK-MISSING\n"), "{what}: {text}");
        let error = suits("n", &package, &parse(&text).unwrap()).expect_err(what).cause;
        assert!(error.error.contains(what) && error.hint.contains("RANKDECK_CACHE"), "{error:?}");
    };
    assert!(look_at(&package, &cache).contains("RANKDECK-PRESENT"));
    for (path, mode) in [(&cache, 0o777), (&cache, 0o1777), (&own, 0o702), (&own, 0o770)] {
        set_mode(path, mode);
        refused("others can write");
        set_mode(path, 0o700);
    }
    set_mode(cache.parent().unwrap(), 0o777);
    refused("others can write");
    set_mode(cache.parent().unwrap(), 0o1777);
    assert!(look_at(&package, &cache).contains("RANKDECK-PRESENT"), "as /tmp");
    set_mode(cache.parent().unwrap(), 0o700);
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        rankdeck_testkit::skip!("only root can make folders of another user");
    }
    for path in [cache.parent().unwrap(), &cache, &own] {
        std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
        refused("belongs to user 65534");
        std::os::unix::fs::chown(path, Some(0), None).unwrap();
    }
    std::os::unix::fs::chown(own.join(AGENT), Some(65_534), None).unwrap();
    assert!(look_at(&package, &cache).ends_with("RANKDECK-MISSING\n"), "its owner could write it");
}

/// Whatever leads to it is looked at, up to the root, which a relative path never comes to.
#[test]
fn deploy_1_a_cache_without_an_absolute_path_is_not_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path(), false);
    let text = look_at(&package, Path::new("."));
    let found = parse(&text).unwrap_or_else(|| panic!("{text}"));
    assert_eq!((found.right, found.distrust.as_deref()), ([false, false, true], None));
    assert!(suits("n", &package, &found).unwrap_err().cause.error.contains("absolute"));
}

#[test]
fn the_folder_depends_on_both_contents() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, both) = (package(folder.path(), false), package(folder.path(), true));
    assert_eq!(alone.folder(), alone.agent_folder());
    assert_ne!(both.folder(), both.agent_folder());
    assert_eq!(both.agent_folder(), alone.agent_folder());
    assert_eq!(alone.folder().len(), 16);
}

#[test]
fn unsuitable_hosts_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut package = package(folder.path(), false);
    package.agent.needs = Needs { loader: Some("/lib64/ld-linux.so".into()), glibc: Some((2, 34)) };
    let good = DeployLook {
        system: system(),
        loader: true,
        home: "/h".into(),
        cache: "/h/c".into(),
        libc: "glibc 2.36".into(),
        distrust: None,
        right: [false; 3],
    };
    assert!(suits("n", &package, &good).is_ok());
    let refused = |found: DeployLook| suits("n", &package, &found).unwrap_err().cause.error;
    assert!(refused(DeployLook { system: "Linux aarch64".into(), ..good.clone() }).contains("Linux aarch64"));
    let old = refused(DeployLook { libc: "glibc 2.31".into(), ..good.clone() });
    assert_eq!(old, "n has glibc 2.31; rankdeck's binary needs glibc 2.34 or newer");
    let musl = refused(DeployLook { loader: false, libc: "-".into(), ..good.clone() });
    assert_eq!(musl, "n has no glibc loader; rankdeck's binary needs glibc 2.34 or newer");
    assert!(refused(DeployLook { cache: "x".into(), ..good.clone() }).contains("absolute"));
    let unknown = DeployLook { libc: "-".into(), ..good.clone() };
    assert!(suits("n", &package, &unknown).is_ok(), "unknown is tried");
    package.agent.needs = Needs::default();
    assert!(
        suits("n", &package, &DeployLook { libc: "glibc 2.17".into(), ..good }).is_ok(),
        "a static program"
    );
}

#[test]
fn half_an_answer_is_none() {
    assert_eq!(parse("RANKDECK-HOST\nLinux x86_64\nyes\n/root\n"), None);
    assert_eq!(parse(""), None);
}
