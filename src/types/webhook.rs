//! Posts JSON to a URL with `curl`, which reads both from stdin, so that no process list shows the URL.

/// The program.
pub const PROGRAM: &str = "curl";
/// Its arguments.
pub const ARGUMENTS: [&str; 7] = ["--silent", "--show-error", "--fail", "--max-time", "9", "--config", "-"];

/// Returns its stdin.
pub fn input(url: &str, body: &str) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
    format!(
        "url = \"{}\"\nheader = \"Content-Type: application/json\"\ndata-raw = \"{}\"\n",
        quoted(url),
        quoted(body)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_url_is_in_stdin_only_and_quoted() {
        let text = input("https://x/y", "{\"a\":\"b\\n\"}");
        assert!(
            text.contains("url = \"https://x/y\"") && text.contains("{\\\"a\\\":\\\"b\\\\n\\\"}"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
        assert!(ARGUMENTS.iter().all(|word| !word.contains("://")));
    }
}
