//! Posting JSON to an address with `curl`, which reads all of it from its input: no list of processes shows
//! the address.

/// The program.
pub const PROGRAM: &str = "curl";
/// Its arguments.
pub const ARGUMENTS: [&str; 7] = ["--silent", "--show-error", "--fail", "--max-time", "9", "--config", "-"];

/// What it reads.
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
    fn a_webhook_stands_in_no_list_of_processes_and_breaks_no_quotes() {
        let text = input("https://x/y", "{\"a\":\"b\\n\"}");
        assert!(
            text.contains("url = \"https://x/y\"") && text.contains("{\\\"a\\\":\\\"b\\\\n\\\"}"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
        assert!(ARGUMENTS.iter().all(|word| !word.contains("://")));
    }
}
