//! A headless browser, for what a program writes for readers: it must run no script.

use crate::{program, skipped};
use std::path::Path;
use std::process::{Command, Stdio};

/// Browsers with `--headless` and `--dump-dom`.
const PROGRAMS: [&str; 5] =
    ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The attribute of the document's element that [`SCRIPT`] sets.
const MARK: &str = "data-pwned=\"yes\"";
/// A script that can be recognized after it ran.
pub const SCRIPT: &str = "document.documentElement.setAttribute('data-pwned','yes')";

/// Texts that run [`SCRIPT`] where a page holds them as they are: as an element, in an attribute, in a comment,
/// and in `<style>`, `<title>`, `<pre>` and SVG.
pub fn hostile_texts() -> [String; 4] {
    [
        format!("\"'><script>{SCRIPT}</script><img src=x onerror=\"{SCRIPT}\">"),
        format!("--></style></title></pre></text></svg><svg onload=\"{SCRIPT}\"><script>{SCRIPT}</script>"),
        format!(
            "x\" onload=\"{SCRIPT}\" onerror=\"{SCRIPT}\" onmouseover=\"{SCRIPT}\" autofocus onfocus=\"{SCRIPT}"
        ),
        format!("javascript:{SCRIPT}"),
    ]
}

/// Opens a page; returns its document as the browser sees it. `None` if the test is skipped.
///
/// # Panics
/// The browser fails, or does not run the script of a page that has one.
#[expect(clippy::expect_used, reason = "used in tests only")]
pub fn document(page: &Path) -> Option<String> {
    let Some(browser) = PROGRAMS.iter().find_map(|name| program(name)) else {
        skipped("no headless browser; tests/setup/packages.sh browser");
        return None;
    };
    let folder = std::env::temp_dir().join(format!("rankdeck-browser-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the browser");
    let open = |page: &Path| {
        let output = Command::new(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", folder.display()))
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .expect("the browser starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let control = folder.join("control.html");
    std::fs::write(&control, format!("<!doctype html><title>x</title><script>{SCRIPT}</script>"))
        .expect("a page");
    assert!(open(&control).contains(MARK), "the browser runs no scripts");
    let document = open(page);
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
    Some(document)
}

/// Checks that a page runs no script, and has no script and no handler of events.
///
/// # Panics
/// It does.
pub fn assert_inert(page: &Path) {
    let Some(document) = document(page) else { return };
    assert!(!document.contains(MARK), "{} ran a script", page.display());
    for tag in tags(&document) {
        let element = tag.split([' ', '/']).next().unwrap_or_default();
        assert!(!["script", "iframe", "object", "embed", "link", "base"].contains(&element), "<{tag}>");
        assert!(!tag.contains(" on") && !tag.contains("href"), "<{tag}>");
    }
}

/// The tags of a document in lower case, without values of attributes.
fn tags(document: &str) -> Vec<String> {
    let (mut all, mut open, mut quoted) = (Vec::new(), None::<String>, false);
    for sign in document.chars() {
        match (&mut open, sign) {
            (None, '<') => open = Some(String::new()),
            (Some(_), '"') => quoted = !quoted,
            (Some(_), '>') if !quoted => all.extend(open.take()),
            (Some(tag), _) if !quoted => tag.extend(sign.to_lowercase()),
            _ => {}
        }
    }
    all
}
