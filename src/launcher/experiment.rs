//! Reading an experiment file.

use crate::error::LaunchError;
use rankdeck_types::experiment::Experiment;
use std::path::Path;

/// Reads an experiment file.
pub fn load(path: &Path) -> Result<Experiment, LaunchError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        LaunchError::usage(
            format!("cannot read experiment {}: {error}", path.display()),
            "give an existing file to --config",
        )
    })?;
    toml::from_str(&text).map_err(|error| {
        LaunchError::usage(
            format!("experiment {} is not valid: {}", path.display(), error.to_string().trim_end()),
            "`rankdeck check FILE` explains experiment files",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load(Path::new("/nonexistent/x.toml")).unwrap_err();
        assert!(error.usage && error.hinted.error.contains("/nonexistent/x.toml"));
    }
}
