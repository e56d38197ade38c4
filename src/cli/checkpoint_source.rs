//! What `--from` names.

/// Name of the checkpoint that a run writes last.
pub const LATEST: &str = "latest";

/// A checkpoint to begin from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file on rank 0's host.
    Path(String),
    /// A checkpoint of a run.
    Run {
        /// Its name, or the beginning of it.
        run: String,
        /// The file's name without its ending.
        checkpoint: String,
    },
}

/// Reads `RUN`, `RUN:latest`, `RUN:best`, `RUN:ITERATION` or a path.
pub fn parse(text: &str) -> Result<Source, String> {
    if text.contains('/') {
        return Ok(Source::Path(text.to_owned()));
    }
    let (run, checkpoint) = text.split_once(':').unwrap_or((text, LATEST));
    let checkpoint = match checkpoint {
        "latest" | "best" => checkpoint.to_owned(),
        number if number.parse::<u64>().is_ok() => format!("iter-{number}"),
        _ => return Err("expected RUN, RUN:latest, RUN:best, RUN:ITERATION or a path".to_owned()),
    };
    match run.is_empty() || run.ends_with(".ckpt") {
        true => Err("expected a run, or the path of a checkpoint with a `/` in it".to_owned()),
        false => Ok(Source::Run { run: run.to_owned(), checkpoint }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let run = |run: &str, checkpoint: &str| {
            Ok(Source::Run { run: run.to_owned(), checkpoint: checkpoint.to_owned() })
        };
        assert_eq!(parse("ppo-2026"), run("ppo-2026", "latest"));
        assert_eq!(parse("ppo:best"), run("ppo", "best"));
        assert_eq!(parse("ppo:120"), run("ppo", "iter-120"));
        assert_eq!(parse("/x/a.ckpt"), Ok(Source::Path("/x/a.ckpt".into())));
        assert_eq!(parse("runs/a:b/x.ckpt"), Ok(Source::Path("runs/a:b/x.ckpt".into())));
        for wrong in ["", ":best", "ppo:", "ppo:newest", "x.ckpt", "ppo:-1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
