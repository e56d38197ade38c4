//! What was typed; exit codes; completions; man page.
