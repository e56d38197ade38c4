//! Isolation of the test beds from the machine.

use rankdeck_testkit::{program, repository, skipped};
use std::process::Command;

/// Package managers replace files of /etc while tests run. Here /etc is a copy in its own mount namespace.
const REPLACED: &str = r#"
set -eu
cp -a /etc/. "$1/etc" 2>/dev/null || true
mount --bind "$1/etc" /etc
export TESTBED_DIR=$1/bed TESTBED_OWNER=$2
trap '"$0" down' EXIT
"$0" up 1 >&2
for file in passwd group hosts; do
    cp -a "/etc/$file" "/etc/$file.new"
    mv "/etc/$file.new" "/etc/$file"
done
"$0" exec 0 getent passwd tb
"$0" exec 0 getent hosts node0
"#;

#[test]
fn replaced_etc_file_changes_no_test_host() {
    for name in ["sshd", "ssh-keygen", "ip", "unshare", "nsenter", "openssl", "perl"] {
        if program(name).is_none() {
            return skipped(&format!("no {name} for a test bed; tests/setup/packages.sh test"));
        }
    }
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can replace /etc of a bed");
    }
    let folder = tempfile::Builder::new().prefix("rdbed").tempdir().unwrap();
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "bash", "-c", REPLACED])
        .arg(repository("tests/testbed/testbed"))
        .arg(folder.path())
        .arg(std::process::id().to_string())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if stderr.contains("namespaces here") {
        return skipped(&format!("no test bed: {}", stderr.trim()));
    }
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("/home/tb") && stdout.contains("node0"), "{stdout}\n{stderr}");
}
